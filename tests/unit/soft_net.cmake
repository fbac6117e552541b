# The network alone, driven by hosts without verbs: links, switches and routes against closed forms.
foreach(part credits links switch routes verbs cut_through reorder)
  sluice_test(NAME soft_net_${part}_test SOURCES soft_net_${part}_test.cc LIBS sluice_soft_model LABELS unit)
endforeach()
sluice_test(NAME soft_net_traffic_test SOURCES soft_net_traffic_test.cc LIBS sluice_soft_flows LABELS unit)
sluice_test(NAME soft_net_credits_property_test SOURCES soft_net_credits_property_test.cc LIBS sluice_soft_flows LABELS unit)
