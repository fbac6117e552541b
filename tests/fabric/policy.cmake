# The configuration that `sluice fabric-config` prints, under a real subnet manager and a simulated InfiniBand fabric.
sluice_test(NAME opensm_test SOURCES opensm_test.cc LIBS sluice_fabric_config LABELS fabric TIMEOUT 600)
add_dependencies(opensm_test sluice)
