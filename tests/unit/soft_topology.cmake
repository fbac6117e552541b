# Topologies by generator and by file, and the settings in them.
foreach(part topology topology_network)
  sluice_test(NAME soft_${part}_test SOURCES soft_${part}_test.cc LIBS sluice_soft_model LABELS unit)
endforeach()
