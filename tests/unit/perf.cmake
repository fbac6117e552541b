# The parts of `sluice perf` that need no network.
sluice_test(NAME perf_schedule_test SOURCES perf_schedule_test.cc LIBS sluice_perf_schedule LABELS unit)
sluice_test(NAME perf_parts_test SOURCES perf_parts_test.cc LIBS sluice_perf LABELS unit)
sluice_test(NAME perf_bootstrap_test SOURCES perf_bootstrap_test.cc LIBS sluice_perf LABELS unit)
sluice_test(NAME perf_host_processor_test SOURCES perf_host_processor_test.cc LIBS sluice_perf LABELS unit)
