# The command `sluice scenario` from outside.
sluice_test(NAME scenario_command_test SOURCES scenario_command_test.cc scenario_run.cc LIBS nlohmann_json::nlohmann_json
  LABELS fabric TIMEOUT 300)
sluice_test(NAME lane_scenarios_test SOURCES lane_scenarios_test.cc scenario_run.cc LIBS nlohmann_json::nlohmann_json
  LABELS fabric TIMEOUT 300)
foreach(test scenario_command_test lane_scenarios_test)
  add_dependencies(${test} sluice sluice_plugin)
endforeach()
