sluice_test(NAME params_test SOURCES params_test.cc LIBS sluice_params LABELS unit)
sluice_test(NAME params_doc_test SOURCES params_doc_test.cc LIBS sluice_params LABELS unit)
sluice_test(NAME log_test SOURCES log_test.cc LIBS sluice_params LABELS unit)
sluice_test(NAME lanes_test SOURCES lanes_test.cc LIBS sluice_params LABELS unit)
