sluice_test(NAME soft_ipc_test SOURCES soft_ipc_test.cc LIBS sluice_soft_ipc LABELS unit)
