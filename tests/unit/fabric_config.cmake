sluice_test(NAME fabric_config_test SOURCES fabric_config_test.cc LIBS sluice_fabric_config LABELS unit)
sluice_test(NAME policy_commands_test SOURCES policy_commands_test.cc LIBS sluice_tuner nlohmann_json::nlohmann_json LABELS unit)
add_dependencies(policy_commands_test sluice)
