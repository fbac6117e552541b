# The network alone, driven by hosts without verbs: links, switches and routes against closed forms.
foreach(part links switch routes verbs)
  sluice_test(NAME soft_net_${part}_test SOURCES soft_net_${part}_test.cc LIBS sluice_soft_model LABELS unit)
endforeach()
