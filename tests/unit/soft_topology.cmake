# Topologies by generator and by file, the settings in them, faults, background traffic, counters.
foreach(part topology topology_network faults background counters)
  sluice_test(NAME soft_${part}_test SOURCES soft_${part}_test.cc LIBS sluice_soft_model LABELS unit)
endforeach()
