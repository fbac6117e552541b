sluice_test(NAME verbs_test
  SOURCES
    verbs_gid_test.cc
    verbs_hca_filter_test.cc
    verbs_link_test.cc
    verbs_memory_test.cc
    verbs_messages_test.cc
  LIBS sluice_verbs
  LABELS unit)

# Brings its own libibverbs, so it is a program of its own.
sluice_test(NAME verbs_device_test
  SOURCES verbs_device_test.cc verbs_fake_library.cc
  LIBS sluice_verbs
  LABELS unit)
sluice_test(NAME sa_client_test SOURCES ${CMAKE_CURRENT_LIST_DIR}/sa_client_test.cc LIBS sluice_verbs LABELS unit)
