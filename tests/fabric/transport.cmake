# The transport over the software fabric, and its steady state over a verbs library that completes at once.
sluice_test(NAME transport_property_test SOURCES ${CMAKE_CURRENT_LIST_DIR}/transport_property_test.cc $<TARGET_OBJECTS:sluice_fault_rig>
  LIBS PkgConfig::IBVERBS ${CMAKE_DL_LIBS} LABELS fabric TIMEOUT 600 ENV LD_LIBRARY_PATH=${CMAKE_BINARY_DIR}/lib/soft)
set_target_properties(transport_property_test PROPERTIES ENABLE_EXPORTS ON)
add_dependencies(transport_property_test sluice_plugin sluice_soft_verbs)

# Sanitizers make system calls of their own.
if(NOT SLUICE_SANITIZE)
  set(null_sysfs ${CMAKE_BINARY_DIR}/tests/null_sysfs)
  add_test(NAME transport_syscalls_sysfs COMMAND ${CMAKE_SOURCE_DIR}/tests/overhead/sysfs/make_tree.sh ${null_sysfs})
  set_tests_properties(transport_syscalls_sysfs PROPERTIES LABELS fabric FIXTURES_SETUP null_sysfs)
  set(null_environment LD_LIBRARY_PATH=${CMAKE_BINARY_DIR}/overhead/lib NULLVERBS_SYSFS=${null_sysfs} NCCL_SOCKET_IFNAME=lo)
  sluice_test(NAME transport_syscalls_test SOURCES ${CMAKE_CURRENT_LIST_DIR}/transport_syscalls_test.cc LIBS ${CMAKE_DL_LIBS}
    LABELS fabric ENV ${null_environment})
  add_dependencies(transport_syscalls_test sluice_plugin nullverbs)
  add_test(NAME transport_syscalls_striped_test COMMAND transport_syscalls_test)
  set_tests_properties(transport_syscalls_striped_test PROPERTIES LABELS fabric TIMEOUT 120 ENVIRONMENT
    "SLUICE_BUILD_DIR=${CMAKE_BINARY_DIR};${null_environment};NCCL_IB_QPS_PER_CONNECTION=4;NCCL_IB_SPLIT_DATA_ON_QPS=1")
  set_tests_properties(transport_syscalls_test transport_syscalls_striped_test PROPERTIES FIXTURES_REQUIRED null_sysfs)
endif()

# Marks of the lanes as the fabric counts them.
sluice_test(NAME lane_marks_test SOURCES ${CMAKE_CURRENT_LIST_DIR}/lane_marks_test.cc $<TARGET_OBJECTS:sluice_fault_rig>
  LIBS PkgConfig::IBVERBS ${CMAKE_DL_LIBS} LABELS fabric TIMEOUT 600 ENV LD_LIBRARY_PATH=${CMAKE_BINARY_DIR}/lib/soft)
set_target_properties(lane_marks_test PROPERTIES ENABLE_EXPORTS ON)
add_dependencies(lane_marks_test sluice_plugin sluice_soft_verbs)
