sluice_test(NAME port_share_test SOURCES port_share_test.cc LIBS sluice_tuner LABELS unit)
