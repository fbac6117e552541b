# Flows of the network model, their transports and yardsticks, and the parts of `sluice scenario`.
sluice_test(NAME soft_flow_test SOURCES soft_flow_test.cc LIBS sluice_soft_flows LABELS unit)
sluice_test(NAME soft_flow_uec_test SOURCES soft_flow_uec_test.cc LIBS sluice_soft_flows LABELS unit)
sluice_test(NAME soft_flow_scenario_test SOURCES soft_flow_scenario_test.cc LIBS sluice_scenario LABELS unit)
