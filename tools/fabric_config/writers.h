// Plans as the configuration of a tool, with comments that say what each line does and why. The text depends on nothing but
// its arguments.
#pragma once

#include <string>

#include "tools/fabric_config/plan.h"

namespace sluice::fabric_config {

// Options of OpenSM: opensm.conf, or `opensm -F FILE`.
std::string OpenSmText(const InfiniBandPlan& plan, const std::string& policy_name, const Options& options);
// Shell scripts for one host port, whose interface is their argument.
std::string MlnxQosText(const RocePlan& plan, const std::string& policy_name, const Options& options);
std::string DcbText(const RocePlan& plan, const std::string& policy_name);
// Tables of SONiC's CONFIG_DB for `config load`. JSON has no comments: SonicNotes are for people.
std::string SonicJson(const RocePlan& plan, const Options& options);
std::string SonicNotes(const RocePlan& plan, const Options& options);

}  // namespace sluice::fabric_config
