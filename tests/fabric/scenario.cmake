# The command `sluice scenario` from outside.
sluice_test(NAME scenario_command_test SOURCES scenario_command_test.cc LIBS nlohmann_json::nlohmann_json
  LABELS fabric TIMEOUT 300)
add_dependencies(scenario_command_test sluice)
