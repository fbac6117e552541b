# The configuration that `sluice fabric-config` prints, under a real subnet manager and a simulated InfiniBand fabric.
sluice_test(NAME opensm_test SOURCES opensm_test.cc LIBS sluice_fabric_config LABELS fabric TIMEOUT 600)
add_dependencies(opensm_test sluice)
# Asks that subnet manager for paths, as the plugin does.
add_executable(sa_ask sa_ask.cc)
target_link_libraries(sa_ask PRIVATE sluice_verbs ${CMAKE_DL_LIBS})
set_target_properties(sa_ask PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
sluice_test(NAME sa_opensm_test SOURCES sa_opensm_test.cc LABELS fabric TIMEOUT 600)
add_dependencies(sa_opensm_test sa_ask)
