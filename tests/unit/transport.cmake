sluice_test(NAME transport_test SOURCES ${CMAKE_CURRENT_LIST_DIR}/transport_lock_test.cc ${CMAKE_CURRENT_LIST_DIR}/transport_frames_test.cc
  ${CMAKE_CURRENT_LIST_DIR}/transport_link_test.cc ${CMAKE_CURRENT_LIST_DIR}/transport_activity_file_test.cc ${CMAKE_CURRENT_LIST_DIR}/transport_ports_test.cc
  LIBS sluice_transport sluice_params LABELS unit)
