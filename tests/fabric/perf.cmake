# `sluice perf` as a program: over a toy plugin that fails on demand, and over the Sluice plugin on the software fabric.
set(perf_timeout_s 600)
if(SLUICE_SANITIZE)
  set(perf_timeout_s 1800)
endif()
add_library(perf_toy_plugin MODULE perf_toy_plugin.cc)

sluice_test(NAME perf_toy_test SOURCES perf_toy_test.cc perf_run.cc LIBS nlohmann_json::nlohmann_json LABELS fabric TIMEOUT ${perf_timeout_s})
add_dependencies(perf_toy_test sluice perf_toy_plugin)

if(TARGET sluice_plugin)
  sluice_test(NAME perf_soft_test SOURCES perf_soft_test.cc perf_run.cc LIBS nlohmann_json::nlohmann_json LABELS fabric TIMEOUT ${perf_timeout_s})
  add_dependencies(perf_soft_test sluice sluice_plugin sluice_soft_verbs sluice_fabric)
endif()

if(TARGET sluice_plugin)
  sluice_test(NAME perf_virtual_test SOURCES perf_virtual_test.cc perf_run.cc LIBS nlohmann_json::nlohmann_json LABELS fabric TIMEOUT ${perf_timeout_s})
  add_dependencies(perf_virtual_test sluice sluice_plugin sluice_soft_virtual perf_toy_plugin)

  sluice_test(NAME perf_workload_test SOURCES perf_workload_test.cc perf_run.cc LIBS sluice_workload
    LABELS fabric TIMEOUT ${perf_timeout_s})
  add_dependencies(perf_workload_test sluice sluice_plugin sluice_soft_virtual)

  sluice_test(NAME agreement_test SOURCES agreement_test.cc perf_run.cc LIBS sluice_scenario sluice_workload
    LABELS fabric TIMEOUT ${perf_timeout_s})
  add_dependencies(agreement_test sluice sluice_plugin sluice_soft_virtual)
endif()

if(TARGET sluice_plugin)
  sluice_test(NAME perf_mixed_test SOURCES perf_mixed_test.cc perf_run.cc LIBS nlohmann_json::nlohmann_json LABELS fabric TIMEOUT ${perf_timeout_s})
  add_dependencies(perf_mixed_test sluice sluice_plugin sluice_soft_verbs sluice_fabric)
endif()
