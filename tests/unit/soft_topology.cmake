# Topologies by generator and by file.
sluice_test(NAME soft_topology_test SOURCES soft_topology_test.cc LIBS sluice_soft_model LABELS unit)
