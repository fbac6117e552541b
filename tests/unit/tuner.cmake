sluice_test(NAME tuner_policy_test SOURCES tuner_policy_test.cc LIBS sluice_tuner LABELS unit)
sluice_test(NAME tuner_policy_errors_test SOURCES tuner_policy_errors_test.cc LIBS sluice_tuner LABELS unit)
sluice_test(NAME tuner_policy_property_test SOURCES tuner_policy_property_test.cc LIBS sluice_tuner LABELS unit)
