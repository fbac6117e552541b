# Flows of the network model, their transports and yardsticks.
sluice_test(NAME soft_flow_test SOURCES soft_flow_test.cc LIBS sluice_soft_flows LABELS unit)
