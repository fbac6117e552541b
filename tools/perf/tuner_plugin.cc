#include "tools/perf/tuner_plugin.h"

#include <dlfcn.h>

#include <utility>

namespace sluice::perf {
namespace {

void Log(int, unsigned long, const char*, int, const char*, ...) {}

struct LibraryCloser {
  void operator()(void* library) const { dlclose(library); }
};
using Library = std::unique_ptr<void, LibraryCloser>;

Status Check(const char* call, nccl::NcclResult result) {
  if (result == nccl::kSuccess) return Status::Ok();
  return RemoteError(std::string("the tuner's ") + call + " returned " +
                     std::to_string(static_cast<int>(result)) + "; NCCL would fail the collective");
}

template <typename Table, int kVersion>
class Versioned final : public TunerPlugin {
 public:
  Versioned(Library library, const Table* table) : library_(std::move(library)), table_(table) {}

  int version() const override { return kVersion; }

  Status Init(const sluice::Communicator& communicator, void** context) override {
    *context = nullptr;
    const auto ranks = static_cast<size_t>(communicator.ranks);
    const auto nodes = static_cast<size_t>(communicator.nodes);
    if constexpr (kVersion == 1) {
      return Check("init", table_->init(ranks, nodes, Log));
    } else if constexpr (kVersion <= 4) {
      return Check("init", table_->init(ranks, nodes, Log, context));
    } else {
      nccl::TunerNvlDomainInfo domains{static_cast<int>(nodes), 1, 1};
      nccl::TunerConstants constants{};
      return Check("init", table_->init(context, communicator.hash, ranks, nodes, Log, &domains, &constants));
    }
  }

  Status GetCollInfo(void* context, int function, size_t bytes) override {
    int channels = 0;
    if constexpr (kVersion <= 2) {
      int algorithm = -1, protocol = -1;
      if constexpr (kVersion == 1) {
        return Check("getCollInfo",
                     table_->getCollInfo(function, bytes, 0, 0, 1, &algorithm, &protocol, &channels));
      } else {
        return Check("getCollInfo", table_->getCollInfo(context, function, bytes, 0, 0, 1, &algorithm,
                                                        &protocol, &channels));
      }
    } else {
      float costs[nccl::kTunerAlgorithms][nccl::kTunerProtocols];
      for (auto& row : costs) {
        for (float& cost : row) cost = -1.0f;  // impossible: must stay so
      }
      costs[nccl::kAlgoRing][nccl::kProtoSimple] = 100.0f;
      auto* const table = reinterpret_cast<float**>(&costs[0][0]);
      nccl::NcclResult result = nccl::kSuccess;
      if constexpr (kVersion == 3) {
        result = table_->getCollInfo(context, function, bytes, 1, table, nccl::kTunerAlgorithms,
                                     nccl::kTunerProtocols, &channels);
      } else {
        result = table_->getCollInfo(context, function, bytes, 1, table, nccl::kTunerAlgorithms,
                                     nccl::kTunerProtocols, 0, &channels);
      }
      SLUICE_RETURN_IF_ERROR(Check("getCollInfo", result));
      for (int a = 0; a < nccl::kTunerAlgorithms; ++a) {
        for (int p = 0; p < nccl::kTunerProtocols; ++p) {
          const bool possible = a == nccl::kAlgoRing && p == nccl::kProtoSimple;
          if (!possible && costs[a][p] != -1.0f)
            return RemoteError("the tuner wrote a cost where NCCL said that there is no such algorithm");
        }
      }
      return Status::Ok();
    }
  }

  Status Finalize(void* context) override {
    if constexpr (kVersion == 1) {
      return Check("destroy", table_->destroy());
    } else if constexpr (kVersion <= 4) {
      return Check("destroy", table_->destroy(context));
    } else {
      return Check("finalize", table_->finalize(context));
    }
  }

 private:
  Library library_;
  const Table* table_;
};

template <typename Table, int kVersion>
std::unique_ptr<TunerPlugin> TryVersion(Library& library, int version) {
  if (version != kVersion) return nullptr;
  const void* table = dlsym(library.get(), ("ncclTunerPlugin_v" + std::to_string(kVersion)).c_str());
  if (table == nullptr) return nullptr;
  return std::make_unique<Versioned<Table, kVersion>>(std::move(library), static_cast<const Table*>(table));
}

}  // namespace

int TunerOfNet(int net_version) {
  switch (net_version) {
    case 7:
      return 1;
    case 8:
      return 3;
    case 9:
    case 10:
      return 4;
    case 11:
      return 5;
    default:
      return 6;
  }
}

Result<std::unique_ptr<TunerPlugin>> TunerPlugin::Load(const std::string& path, int version) {
  Library library(dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL));
  if (library == nullptr) {
    const char* error = dlerror();
    return SystemError("cannot load the tuner " + path + ": " + (error == nullptr ? "?" : error));
  }
  std::unique_ptr<TunerPlugin> plugin;
  if (!plugin) plugin = TryVersion<nccl::TunerV6, 6>(library, version);
  if (!plugin) plugin = TryVersion<nccl::TunerV5, 5>(library, version);
  if (!plugin) plugin = TryVersion<nccl::TunerV4, 4>(library, version);
  if (!plugin) plugin = TryVersion<nccl::TunerV3, 3>(library, version);
  if (!plugin) plugin = TryVersion<nccl::TunerV2, 2>(library, version);
  if (!plugin) plugin = TryVersion<nccl::TunerV1, 1>(library, version);
  if (!plugin)
    return InvalidArgument("the plugin " + path + " does not export ncclTunerPlugin_v" +
                           std::to_string(version));
  return plugin;
}

}  // namespace sluice::perf
