#include "tools/perf/mixed.h"

#include <algorithm>

#include "tools/perf/benchmark_parts.h"

namespace sluice::perf {

std::vector<Shape> MixedShapes(const Options& options, int rank) {
  const struct {
    Op op;
    Algo algo;
    Proto proto;
  } kinds[] = {
      {Op::kAllReduce, Algo::kRing, Proto::kSimple},    {Op::kAllToAll, Algo::kRing, Proto::kSimple},
      {Op::kAllReduce, Algo::kTree, Proto::kLl},        {Op::kAllGather, Algo::kRing, Proto::kLl128},
      {Op::kSendRecv, Algo::kRing, Proto::kSimple},     {Op::kReduceScatter, Algo::kRing, Proto::kSimple},
      {Op::kBroadcast, Algo::kRing, Proto::kLl},        {Op::kAllReduce, Algo::kRing, Proto::kLl128},
      {Op::kSendRecv, Algo::kRing, Proto::kLl},         {Op::kAllGather, Algo::kRing, Proto::kSimple},
      {Op::kReduceScatter, Algo::kRing, Proto::kLl},    {Op::kAllToAll, Algo::kRing, Proto::kLl},
      {Op::kAllReduce, Algo::kTree, Proto::kSimple},    {Op::kBroadcast, Algo::kRing, Proto::kSimple},
      {Op::kReduce, Algo::kRing, Proto::kLl128},        {Op::kAllReduce, Algo::kRing, Proto::kLl},
      {Op::kReduceScatter, Algo::kRing, Proto::kLl128}, {Op::kReduce, Algo::kRing, Proto::kSimple},
      {Op::kAllReduce, Algo::kTree, Proto::kLl128},     {Op::kAllGather, Algo::kRing, Proto::kLl},
      {Op::kBroadcast, Algo::kRing, Proto::kLl128},     {Op::kReduce, Algo::kRing, Proto::kLl},
  };
  std::vector<Shape> shapes;
  Options one = options;
  for (const auto& kind : kinds) {
    one.op = kind.op;
    one.algo = kind.algo;
    one.proto = kind.proto;
    const Shape base = BaseShape(one, rank);
    for (size_t bytes = options.min_bytes; bytes <= options.max_bytes; bytes = NextSize(options, bytes))
      shapes.push_back(ShapeFor(one, base, bytes));
  }
  return shapes;
}

}  // namespace sluice::perf
