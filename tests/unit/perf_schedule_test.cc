// Schedules executed in memory: the parts of all ranks fit together and compute the operation.
#include "tools/perf/schedule.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <map>
#include <numeric>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "tools/perf/schedule_parts.h"

namespace sluice::perf {
namespace {

using Message = std::vector<float>;
// (from, to, channel) -> messages on their way. Point-to-point and collective schedules never mix in one run.
using Wires = std::map<std::tuple<int, int, int>, std::deque<Message>>;

float Value(int rank, size_t index) {
  return static_cast<float>((index * 7 + static_cast<size_t>(rank) * 31) % 127);
}

struct RankRun {
  Schedule schedule;
  std::vector<size_t> next;  // per strand
  std::vector<float> input;
  std::vector<float> output;
};

class Simulation {
 public:
  explicit Simulation(Shape shape) : shape_(Supported(shape)) {
    for (int r = 0; r < shape_.ranks; ++r) {
      Shape mine = shape_;
      mine.rank = r;
      RankRun run{BuildSchedule(mine),
                  {},
                  std::vector<float>(InputElements(mine)),
                  std::vector<float>(OutputElements(mine), -1)};
      run.next.assign(run.schedule.strands.size(), 0);
      for (size_t i = 0; i < run.input.size(); ++i) run.input[i] = Value(r, i);
      ranks_.push_back(std::move(run));
    }
  }

  // False: nobody can go on although somebody is not finished.
  bool Run() {
    for (bool moved = true; moved;) {
      moved = false;
      for (size_t r = 0; r < ranks_.size(); ++r) {
        for (size_t s = 0; s < ranks_[r].schedule.strands.size(); ++s) {
          while (Step(static_cast<int>(r), s)) moved = true;
        }
      }
    }
    for (const RankRun& run : ranks_) {
      for (size_t s = 0; s < run.next.size(); ++s) {
        if (run.next[s] != run.schedule.strands[s].slices.size()) return false;
      }
    }
    return true;
  }

  size_t Leftover() const {
    return std::accumulate(wires_.begin(), wires_.end(), size_t{0},
                           [](size_t n, const auto& w) { return n + w.second.size(); });
  }

  void CheckOutputs() const {
    const size_t n = shape_.block_elements;
    for (int r = 0; r < shape_.ranks; ++r) {
      const std::vector<float>& out = ranks_[static_cast<size_t>(r)].output;
      auto sum = [&](size_t i) {
        float total = 0;
        for (int k = 0; k < shape_.ranks; ++k) total += Value(k, i);
        return total;
      };
      for (size_t i = 0; i < out.size(); ++i) {
        float want = 0;
        switch (shape_.op) {
          case Op::kAllReduce:
            want = sum(i);
            break;
          case Op::kReduce:
            if (r != shape_.root) continue;
            want = sum(i);
            break;
          case Op::kReduceScatter:
            want = sum(static_cast<size_t>(r) * n + i);
            break;
          case Op::kAllGather:
            want = Value(static_cast<int>(i / n), i % n);
            break;
          case Op::kBroadcast:
            want = Value(shape_.root, i);
            break;
          case Op::kAllToAll:
            want = Value(static_cast<int>(i / n), static_cast<size_t>(r) * n + i % n);
            break;
          case Op::kSendRecv:
            want = Value((r + shape_.ranks - 1) % shape_.ranks, i);
            break;
        }
        ASSERT_EQ(out[i], want) << "rank " << r << " element " << i;
      }
    }
  }

 private:
  bool Step(int rank, size_t index) {
    RankRun& run = ranks_[static_cast<size_t>(rank)];
    const Strand& strand = run.schedule.strands[index];
    if (run.next[index] == strand.slices.size()) return false;
    for (size_t other = 0; other < run.next.size(); ++other) {  // earlier batches first
      const Strand& o = run.schedule.strands[other];
      if (o.channel == strand.channel && o.batch < strand.batch && run.next[other] != o.slices.size())
        return false;
    }
    const Slice& slice = strand.slices[run.next[index]];
    std::vector<Message> parts;
    if (slice.receives) {
      for (int peer : strand.receive_from) {
        if (wires_[{peer, rank, strand.channel}].empty()) return false;
      }
      for (int peer : strand.receive_from) {
        auto& wire = wires_[{peer, rank, strand.channel}];
        EXPECT_EQ(wire.front().size() * kElementBytes, slice.bytes);
        parts.push_back(std::move(wire.front()));
        wire.pop_front();
      }
    }
    const size_t n = slice.bytes / kElementBytes;
    EXPECT_EQ(n * kElementBytes, slice.bytes);
    if (slice.source != Operand::kNone) {
      const std::vector<float>& from = slice.source == Operand::kInput ? run.input : run.output;
      const size_t at = slice.source_offset / kElementBytes;
      EXPECT_LE(at + n, from.size());
      parts.push_back(
          Message(from.begin() + static_cast<ptrdiff_t>(at), from.begin() + static_cast<ptrdiff_t>(at + n)));
    }
    EXPECT_FALSE(parts.empty());
    Message result(n, 0);
    for (const Message& part : parts) {
      for (size_t i = 0; i < n; ++i) result[i] += part[i];
    }
    if (slice.target == Operand::kOutput) {
      EXPECT_LE(slice.target_offset / kElementBytes + n, run.output.size());
      std::copy(result.begin(), result.end(),
                run.output.begin() + static_cast<ptrdiff_t>(slice.target_offset / kElementBytes));
    }
    if (slice.sends) {
      for (int peer : strand.send_to) wires_[{rank, peer, strand.channel}].push_back(result);
    }
    ++run.next[index];
    return true;
  }

  Shape shape_;
  std::vector<RankRun> ranks_;
  Wires wires_;
};

constexpr Op kOps[] = {Op::kAllReduce, Op::kAllGather, Op::kReduceScatter, Op::kBroadcast,
                       Op::kReduce,    Op::kAllToAll,  Op::kSendRecv};

TEST(ScheduleTest, EveryOperationComputesItsResult) {
  for (Op op : kOps) {
    for (Algo algo : {Algo::kRing, Algo::kTree}) {
      if (algo == Algo::kTree && op != Op::kAllReduce) continue;
      for (Proto proto : {Proto::kSimple, Proto::kLl, Proto::kLl128}) {
        for (int ranks : {1, 2, 3, 4, 9}) {
          for (int channels : {1, 3, 8}) {
            for (size_t elements : {1u, 5u, 20001u}) {
              Shape shape{.op = op, .algo = algo, .proto = proto, .ranks = ranks, .channels = channels};
              shape.root = ranks - 1;
              shape.block_elements = elements;
              SCOPED_TRACE(std::string(Name(op)) + " " + std::string(Name(algo)) + " " +
                           std::string(Name(proto)) + " ranks " + std::to_string(ranks) + " channels " +
                           std::to_string(channels) + " elements " + std::to_string(elements));
              Simulation simulation(shape);
              ASSERT_TRUE(simulation.Run());
              EXPECT_EQ(simulation.Leftover(), 0u);
              ASSERT_NO_FATAL_FAILURE(simulation.CheckOutputs());
            }
          }
        }
      }
    }
  }
}

TEST(ScheduleTest, SeveralFullLoopsOfLargeOperations) {
  for (Op op : kOps) {
    for (const auto& [proto, elements] : {std::pair{Proto::kSimple, 2'000'001}, std::pair{Proto::kLl, 60'001},
                                          std::pair{Proto::kLl128, 600'001}}) {
      const Shape shape{
          .op = op, .proto = proto, .ranks = 3, .block_elements = static_cast<size_t>(elements)};
      SCOPED_TRACE(std::string(Name(op)) + " " + std::string(Name(proto)));
      Simulation simulation(shape);
      ASSERT_TRUE(simulation.Run());
      ASSERT_NO_FATAL_FAILURE(simulation.CheckOutputs());
    }
  }
}

TEST(ScheduleTest, EightBytesOnTwoRanksAreFourMessagesThreeOfThemEmpty) {
  const Schedule schedule = BuildSchedule({.proto = Proto::kSimple, .ranks = 2, .block_elements = 2});
  ASSERT_EQ(schedule.strands.size(), 1u);
  const Strand& strand = schedule.strands[0];
  EXPECT_EQ(strand.sends(), 4u);
  const auto empty = std::count_if(strand.slices.begin(), strand.slices.end(),
                                   [](const Slice& s) { return s.sends && s.bytes == 0; });
  // Rank 0 sends its empty second chunk first, then the sum of the first.
  EXPECT_EQ(empty, 3);
}

TEST(ScheduleTest, StepsOfARingAllReduceMatchNccl) {
  for (const auto& [proto, chunk_bytes, chunk_steps] :
       {std::tuple{Proto::kSimple, size_t{2} << 20, 4}, std::tuple{Proto::kLl, size_t{32} << 10, 1},
        std::tuple{Proto::kLl128, size_t{576000}, 1}}) {
    for (size_t bytes : {size_t{8}, size_t{64} << 10, size_t{64} << 20}) {
      const int ranks = 4;
      const Schedule schedule =
          BuildSchedule({.proto = proto, .ranks = ranks, .block_elements = bytes / kElementBytes});
      const size_t loops = CeilDiv(bytes, ranks * chunk_bytes);
      const size_t steps = 2 * (ranks - 1) * loops * static_cast<size_t>(chunk_steps);
      const size_t slice_steps = static_cast<size_t>(schedule.slice_steps);
      EXPECT_EQ(schedule.chunk_steps, chunk_steps);
      EXPECT_EQ(schedule.strands[0].sends() * slice_steps, steps);
      EXPECT_EQ(schedule.strands[0].receives() * slice_steps, steps);
    }
  }
}

TEST(ScheduleTest, SlicesFitTheirSlots) {
  for (Op op : kOps) {
    for (Proto proto : {Proto::kSimple, Proto::kLl, Proto::kLl128}) {
      const Shape shape =
          Supported({.op = op, .proto = proto, .ranks = 4, .channels = 2, .block_elements = 8 << 20});
      const Schedule schedule = BuildSchedule(shape);
      size_t data_bytes = schedule.step_bytes * static_cast<size_t>(schedule.slice_steps);
      if (shape.proto == Proto::kLl) data_bytes /= 2;
      if (shape.proto == Proto::kLl128) data_bytes = data_bytes / 128 * 120;
      for (const Strand& strand : schedule.strands) {
        if (strand.receive_from.empty() && strand.send_to.empty()) continue;  // a local copy
        for (const Slice& slice : strand.slices)
          EXPECT_LE(slice.bytes, data_bytes) << Name(op) << " " << Name(proto);
      }
    }
  }
}

TEST(ScheduleTest, RegisteredBlocksAreOneMessage) {
  const Shape gather =
      Supported({.op = Op::kAllGather, .ranks = 4, .block_elements = 2 << 20, .registered = true});
  ASSERT_TRUE(gather.registered);
  const Schedule schedule = BuildSchedule(gather);
  EXPECT_EQ(schedule.strands[0].sends(), 3u);
  EXPECT_EQ(schedule.strands[0].slices[0].bytes, size_t{8} << 20);
  const Schedule pair =
      BuildSchedule({.op = Op::kSendRecv, .ranks = 2, .block_elements = 2 << 20, .registered = true});
  for (const Strand& strand : pair.strands) EXPECT_EQ(strand.slices.size(), 1u);
}

TEST(ScheduleTest, SmallOperationsUseFewChannels) {
  EXPECT_EQ(BuildSchedule({.ranks = 4, .channels = 8, .block_elements = 2}).strands.size(), 1u);
  EXPECT_EQ(BuildSchedule({.ranks = 4, .channels = 8, .block_elements = 1 << 20}).strands.size(), 8u);
}

TEST(ScheduleTest, SlicesUseOnlyTheConnectionsThatAreMade) {
  for (Op op : kOps) {
    for (Algo algo : {Algo::kRing, Algo::kTree}) {
      for (int rank = 0; rank < 5; ++rank) {
        const Shape shape = Supported(
            {.op = op, .algo = algo, .rank = rank, .ranks = 5, .channels = 3, .block_elements = 1 << 20});
        const Edges edges = ConnectionsOf(shape);
        for (const Strand& strand : BuildSchedule(shape).strands) {
          for (int peer : strand.receive_from) {
            EXPECT_TRUE(
                std::binary_search(edges.receive.begin(), edges.receive.end(), Edge{peer, strand.channel}));
          }
          for (int peer : strand.send_to) {
            EXPECT_TRUE(std::binary_search(edges.send.begin(), edges.send.end(), Edge{peer, strand.channel}));
          }
        }
      }
    }
  }
}

TEST(ScheduleTest, ConnectionsOfAllRanksMatch) {
  for (Op op : kOps) {
    for (Algo algo : {Algo::kRing, Algo::kTree}) {
      std::multiset<std::tuple<int, int, int>> sent, received;
      for (int rank = 0; rank < 6; ++rank) {
        const Edges edges =
            ConnectionsOf(Supported({.op = op, .algo = algo, .rank = rank, .ranks = 6, .channels = 4}));
        for (const Edge& e : edges.send) sent.insert({rank, e.peer, e.channel});
        for (const Edge& e : edges.receive) received.insert({e.peer, rank, e.channel});
      }
      EXPECT_EQ(sent, received);
    }
  }
}

TEST(TreeTest, BothTreesAreConnectedTrees) {
  for (int ranks = 1; ranks <= 64; ++ranks) {
    for (bool second : {false, true}) {
      int roots = 0;
      for (int rank = 0; rank < ranks; ++rank) {
        const TreePlace place = PlaceInTree(rank, ranks, second);
        EXPECT_LE(place.down.size(), 2u);
        if (place.up < 0) {
          ++roots;
        } else {
          const TreePlace parent = PlaceInTree(place.up, ranks, second);
          EXPECT_EQ(std::count(parent.down.begin(), parent.down.end(), rank), 1) << rank << " of " << ranks;
        }
        for (int child : place.down) EXPECT_EQ(PlaceInTree(child, ranks, second).up, rank);
        int depth = 0;
        for (int r = rank; r >= 0 && depth <= ranks; r = PlaceInTree(r, ranks, second).up) ++depth;
        EXPECT_LE(depth, 8) << "rank " << rank << " of " << ranks;
      }
      EXPECT_EQ(roots, 1);
    }
  }
}

TEST(TreeTest, InnerRanksOfOneTreeAreLeavesOfTheOther) {
  for (int ranks : {4, 8, 16, 32}) {
    for (int rank = 0; rank < ranks; ++rank) {
      EXPECT_FALSE(PlaceInTree(rank, ranks, false).down.size() == 2 &&
                   PlaceInTree(rank, ranks, true).down.size() == 2);
    }
  }
}

}  // namespace
}  // namespace sluice::perf
