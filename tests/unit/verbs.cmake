sluice_test(NAME verbs_test
  SOURCES
    verbs_gid_test.cc
    verbs_hca_filter_test.cc
    verbs_link_test.cc
    verbs_memory_test.cc
    verbs_messages_test.cc
  LIBS sluice_verbs
  LABELS unit)
