# Classification, the profiler half, published statistics.
sluice_test(NAME classify_events_test SOURCES classify_events_test.cc LIBS sluice_classify LABELS unit)
sluice_test(NAME classify_classifier_test SOURCES classify_classifier_test.cc LIBS sluice_classify sluice_statistics LABELS unit)
