# The software fabric's library: unmodified programs of Debian over it, and every verb from processes of our own.
# Tests fork beside a running service thread; children then open devices of their own.
set(soft_environment "LD_LIBRARY_PATH=${CMAKE_BINARY_DIR}/lib/soft" "TSAN_OPTIONS=die_after_fork=0")
foreach(part data errors life objects)
  if(EXISTS ${CMAKE_CURRENT_LIST_DIR}/soft_${part}_test.cc)
    sluice_test(NAME soft_${part}_test SOURCES soft_${part}_test.cc soft_pair.cc LIBS PkgConfig::IBVERBS
      LABELS fabric TIMEOUT 300 ENV ${soft_environment})
    add_dependencies(soft_${part}_test sluice_soft_verbs)
  endif()
endforeach()

# A program without a sanitizer needs its run-time library loaded first.
set(runtime "")
if(SLUICE_SANITIZE MATCHES address)
  execute_process(COMMAND ${CMAKE_CXX_COMPILER} -print-file-name=libasan.so
    OUTPUT_VARIABLE runtime OUTPUT_STRIP_TRAILING_WHITESPACE)
elseif(SLUICE_SANITIZE MATCHES thread)
  execute_process(COMMAND ${CMAKE_CXX_COMPILER} -print-file-name=libtsan.so
    OUTPUT_VARIABLE runtime OUTPUT_STRIP_TRAILING_WHITESPACE)
endif()
foreach(link roce infiniband)
  foreach(program ibv_devices ibv_devinfo ibv_rc_pingpong ib_write_bw ib_write_lat ib_send_bw ib_read_bw)
    add_test(NAME soft_${program}_${link} COMMAND ${CMAKE_CURRENT_LIST_DIR}/soft_programs.sh
      ${CMAKE_BINARY_DIR}/lib/soft ${program} ${link})
    set_tests_properties(soft_${program}_${link} PROPERTIES
      LABELS fabric TIMEOUT 300 ENVIRONMENT "SANITIZER_RUNTIME=${runtime}")
  endforeach()
endforeach()
