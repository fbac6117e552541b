# The fabric model in virtual time: no processes, no wall clock.
foreach(part data errors objects faults timing property topology)
  sluice_test(NAME soft_model_${part}_test SOURCES soft_model_${part}_test.cc LIBS sluice_soft_model LABELS unit)
endforeach()
