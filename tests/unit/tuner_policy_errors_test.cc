// Every mistake in a policy is one line that names file, line, key, value and what would be right.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "tuner/policy.h"

namespace sluice {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

std::string ErrorOf(const Result<std::shared_ptr<const Policy>>& policy) {
  EXPECT_FALSE(policy.ok());
  const std::string message = policy.status().message();
  EXPECT_THAT(message, Not(HasSubstr("\n")));
  EXPECT_LT(message.size(), 1000u) << message;
  return message;
}

std::string ErrorIn(const std::string& toml) {
  return ErrorOf(Policy::Parse(toml, "p.toml"));
}

// A class or rule with one more line, which is line 3 of the file.
std::string InClass(const std::string& line, const std::string& name = "bulk") {
  return ErrorIn("[[class]]\nname = \"" + name + "\"\n" + line + "\n");
}
std::string InRule(const std::string& line) {
  return ErrorIn("[[rule]]\nclass = \"latency\"\n" + line + "\n");
}

TEST(PolicyErrorsTest, FieldsOfClasses) {
  EXPECT_EQ(InClass("sl = 16"),
            "p.toml:3: class bulk: sl = 16 is not a whole number in 0..15; a service level has 4 bits; leave "
            "it out for the "
            "communicator's");
  for (const char* sl : {"-1", "135", "1.0", "\"1\"", "true", "[1]", "9223372036854775807"})
    EXPECT_THAT(InClass("sl = " + std::string(sl)),
                AllOf(StartsWith("p.toml:3: class bulk: sl = "), HasSubstr("0..15")));
  for (const char* tc : {"-1", "256", "300"})
    EXPECT_THAT(InClass("traffic_class = " + std::string(tc)), AllOf(HasSubstr(tc), HasSubstr("0..255")));
  EXPECT_THAT(InClass("dscp = 64"), HasSubstr("0..63"));
  EXPECT_THAT(InClass("dscp = 26\ntraffic_class = 106"),
              HasSubstr("dscp = 26 contradicts traffic_class = 106"));
  EXPECT_THAT(InClass("ecn = \"ect0\""), HasSubstr("give one"));
  EXPECT_THAT(InClass("traffic_class = 4\necn = \"ect0\""),
              HasSubstr("p.toml:4: class bulk: ecn = \"ect0\" contradicts"));
  EXPECT_THAT(InClass("dscp = 1\necn = \"yes\""), HasSubstr("not-ect, ect1, ect0 or ce"));
  for (const char* weight : {"0", "1001", "-3"})
    EXPECT_THAT(InClass("weight = " + std::string(weight)), HasSubstr("1..1000"));
  EXPECT_THAT(InClass("priority = 8", "latency"), HasSubstr("0..7"));
  EXPECT_THAT(InClass("priority = 1"), HasSubstr("strict classes only"));
  EXPECT_THAT(InClass("weight = 1", "latency"), HasSubstr("strict = false"));
  EXPECT_THAT(InClass("queue_pairs = 17"), HasSubstr("1..16"));
  EXPECT_THAT(InClass("queue_pairs = 1\nflow_labels = 2"), HasSubstr("more than queue_pairs = 1"));
  EXPECT_THAT(InClass("strict = 1"), HasSubstr("neither true nor false"));
  EXPECT_THAT(InClass("weight = 3", "control"), HasSubstr("control is the most urgent"));
}

TEST(PolicyErrorsTest, UnknownKeysNameTheNearest) {
  EXPECT_EQ(InClass("wieght = 3"), "p.toml:3: class: unknown key \"wieght\"; did you mean weight?");
  EXPECT_THAT(InRule("comunicator = \"x\""), HasSubstr("did you mean communicator?"));
  EXPECT_THAT(InRule("zzzzzzzz = \"x\""),
              AllOf(HasSubstr("unknown key \"zzzzzzzz\"; use name, class, kind"), HasSubstr("or nodes")));
  EXPECT_THAT(ErrorIn("clas = 1"), HasSubstr("p.toml:1: unknown key \"clas\"; did you mean class?"));
  EXPECT_THAT(ErrorIn("[parallelism]\ntensors = \"x\""), HasSubstr("did you mean tensor?"));
  EXPECT_THAT(InRule("function = \"allreduc\""), HasSubstr("did you mean all_reduce?"));
  EXPECT_THAT(InRule("algorithm = \"rings\""), HasSubstr("did you mean ring?"));
  EXPECT_THAT(InRule("protocol = \"ll129\""), HasSubstr("did you mean ll128?"));
  EXPECT_THAT(InRule("parallelism = \"tensr\""), HasSubstr("did you mean tensor?"));
  EXPECT_THAT(ErrorIn("[[rule]]\nclass = \"latncy\""), HasSubstr("did you mean latency?"));
  EXPECT_THAT(ErrorIn("[[rule]]\nclass = \"storage\""),
              HasSubstr("is not defined; the classes are control, latency, bulk or background"));
}

TEST(PolicyErrorsTest, Classes) {
  EXPECT_THAT(ErrorIn("[[class]]\nname = \"a\"\n[[class]]\nname = \"a\"\n"),
              StartsWith("p.toml:4: class a: name = \"a\" is taken: the class is defined at p.toml:1"));
  EXPECT_THAT(ErrorIn("[[class]]\nsl = 1"), HasSubstr("a class needs a name"));
  for (const char* name : {"A", "a b", "", "ümlaut", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"})
    EXPECT_THAT(ErrorIn("[[class]]\nname = \"" + std::string(name) + "\""), HasSubstr("1..32")) << name;
  std::string many;
  for (const char* name : {"a", "b", "c", "d", "e"})
    many += "[[class]]\nname = \"" + std::string(name) + "\"\n";
  EXPECT_THAT(ErrorIn(many), AllOf(StartsWith("p.toml:9: class e: "), HasSubstr("more than 8 classes")));
  EXPECT_THAT(ErrorIn("class = 1"), HasSubstr("[[class]]"));
  EXPECT_THAT(ErrorIn("class = [1]"), HasSubstr("[[class]]"));
  EXPECT_THAT(ErrorIn("[class]\nname = \"a\""), HasSubstr("[[class]]"));
}

TEST(PolicyErrorsTest, Rules) {
  EXPECT_THAT(ErrorIn("[[rule]]\nkind = \"collective\""),
              HasSubstr("p.toml:1: rule 1: a rule needs a class"));
  EXPECT_THAT(ErrorIn("[[rule]]\nclass = \"control\""), HasSubstr("use latency"));
  EXPECT_THAT(InRule("kind = \"p2p\""), HasSubstr("collective or point_to_point"));
  EXPECT_THAT(InRule("kind = \"collective\"\nfunction = \"send\""), HasSubstr("can match nothing"));
  EXPECT_THAT(InRule("function = []"), HasSubstr("1..64"));
  EXPECT_THAT(InRule("function = [\"all_reduce\", 1]"), HasSubstr("neither a text"));
  EXPECT_THAT(InRule("function = \"unknown\""), HasSubstr("does not name a known function"));
  EXPECT_THAT(InRule("function = \"collective\""), HasSubstr("does not name a known function"));
  for (const char* range : {"[2, 1)", "[1, 1)", "(1, 1]", "(0, 1)"})
    EXPECT_THAT(InRule("bytes = \"" + std::string(range) + "\""),
                AllOf(HasSubstr(range), HasSubstr("empty range")));
  for (const char* range : {"1MiB", "[1MiB]", "{1, 2}", "[]", "[1 2)", "[1, 2"})
    EXPECT_THAT(InRule("bytes = \"" + std::string(range) + "\""),
                HasSubstr("is not a range; write for example"));
  EXPECT_THAT(InRule("bytes = \"[1, 2Q)\""), HasSubstr("\"2Q\" is not a size"));
  EXPECT_THAT(InRule("bytes = 5"), HasSubstr("is not text"));
  EXPECT_THAT(InRule("unknown_bytes = true"), HasSubstr("no effect without bytes"));
  for (const char* nodes : {"0", "-1", "1.5", "[1]"})
    EXPECT_THAT(InRule("nodes = " + std::string(nodes)), HasSubstr("a range such as"));
  EXPECT_THAT(InRule("nodes = \"[4, 2]\""), HasSubstr("empty range"));
  EXPECT_THAT(InRule("nodes = \"[4K, )\""), HasSubstr("not a whole number"));
  EXPECT_THAT(InRule("communicator_traffic_class = 256"), HasSubstr("0..255"));
  EXPECT_THAT(InRule("communicator = \"\""), HasSubstr("1..256"));
  std::string many;
  for (int i = 0; i < 65; ++i)
    many += "[[rule]]\nclass = \"bulk\"\nbytes = \"[" + std::to_string(i) + "," + std::to_string(i) + "]\"\n";
  EXPECT_THAT(ErrorIn(many), AllOf(StartsWith("p.toml:193: rule 65: "), HasSubstr("more than 64 rules")));
}

TEST(PolicyErrorsTest, RulesThatCanNeverMatch) {
  const auto second = [](const std::string& first, const std::string& rule) {
    return ErrorIn("[[rule]]\nclass = \"bulk\"\n" + first + "\n[[rule]]\nclass = \"latency\"\n" + rule +
                   "\n");
  };
  const auto fine = [](const std::string& first, const std::string& rule) {
    const auto policy = Policy::Parse(
        "[[rule]]\nclass = \"bulk\"\n" + first + "\n[[rule]]\nclass = \"latency\"\n" + rule + "\n", "p.toml");
    EXPECT_TRUE(policy.ok()) << policy.status().message();
  };
  EXPECT_THAT(second("", "function = \"send\""),
              AllOf(StartsWith("p.toml:4: rule 2: it can never match"), HasSubstr("rule 1 (p.toml:1)")));
  EXPECT_THAT(second("kind = \"collective\"", "function = [\"all_reduce\", \"reduce\"]"), HasSubstr("never"));
  EXPECT_THAT(second("bytes = \"[0, )\"\nunknown_bytes = true", "protocol = \"ll\""), HasSubstr("never"));
  EXPECT_THAT(second("bytes = \"[0, 1MiB)\"", "bytes = \"[4, 8]\""), HasSubstr("never"));
  EXPECT_THAT(second("communicator = \"tp*\"", "communicator = [\"tp1\", \"tp_*\"]"), HasSubstr("never"));
  EXPECT_THAT(second("nodes = \"[2, )\"", "nodes = 4"), HasSubstr("never"));
  EXPECT_THAT(second("communicator_traffic_class = [1, 2]", "communicator_traffic_class = 2"),
              HasSubstr("never"));
  EXPECT_THAT(second("parallelism = [\"data\", \"tensor\"]", "parallelism = \"tensor\""), HasSubstr("never"));
  fine("bytes = \"[0, )\"", "protocol = \"ll\"");  // unknown bytes are left
  fine("bytes = \"[0, 1MiB)\"", "bytes = \"[4, 1MiB]\"");
  fine("bytes = \"[0, 1MiB)\"", "bytes = \"[4, 8]\"\nunknown_bytes = true");
  fine("communicator = \"tp?\"", "communicator = \"tp*\"");
  fine("communicator = \"*\"", "function = \"send\"");  // communicators without a name are left
  fine("nodes = \"[1, )\"", "function = \"send\"");
  fine("function = \"all_reduce\"", "kind = \"collective\"");
  // Several rules together.
  EXPECT_THAT(
      ErrorIn(
          "[[rule]]\nclass = \"bulk\"\nbytes = \"[0, 8)\"\n[[rule]]\nclass = \"bulk\"\nbytes = \"[8, 20)\"\n"
          "[[rule]]\nclass = \"latency\"\nbytes = \"[4, 16)\"\n"),
      AllOf(StartsWith("p.toml:7: rule 3"), HasSubstr("rule 1 (p.toml:1), rule 2 (p.toml:4)")));
}

TEST(PolicyErrorsTest, BrokenText) {
  EXPECT_THAT(ErrorIn(""), HasSubstr("p.toml: the policy is empty"));
  EXPECT_THAT(ErrorIn("# nothing\n\n"), HasSubstr("the policy is empty"));
  EXPECT_THAT(ErrorIn("[[class]\nname"), StartsWith("p.toml:1: not TOML: "));
  EXPECT_THAT(ErrorIn("[[class]]\nname = \"a\"\nsl = 1\nsl = 2\n"), StartsWith("p.toml:4: not TOML: "));
  EXPECT_THAT(ErrorIn("[[class]]\nname = \"\xff\xfe\"\n"), StartsWith("p.toml:2: not TOML: "));
  EXPECT_THAT(ErrorIn(std::string("a = \"\0\"", 7)), StartsWith("p.toml:1: not TOML: "));
  EXPECT_THAT(ErrorIn("a = " + std::string(100000, '[')), StartsWith("p.toml:1: not TOML: "));
  EXPECT_THAT(ErrorIn(std::string((1 << 20) + 1, ' ')),
              HasSubstr("1048577 bytes; a policy has at most 1048576"));
  // What a message quotes is short, and stays on its line.
  EXPECT_THAT(InRule("bytes = \"a\\nb\\u001b[0m\""), HasSubstr("\"a?b?[0m\""));
  EXPECT_THAT(InClass("\"" + std::string(5000, 'k') + "\" = 1"), HasSubstr("unknown key"));
}

class PolicyFilesTest : public testing::Test {
 protected:
  PolicyFilesTest() {
    char name[] = "/tmp/sluice-policy-XXXXXX";
    dir_ = mkdtemp(name);
  }
  ~PolicyFilesTest() override { std::filesystem::remove_all(dir_); }
  std::string Write(const std::string& text) const {
    const std::string path = dir_ / "policy.toml";
    std::ofstream(path, std::ios::binary) << text;
    return path;
  }
  std::filesystem::path dir_;
};

TEST_F(PolicyFilesTest, Load) {
  const std::string path = Write("[[class]]\nname = \"bulk\"\nsl = 3\n");
  const auto policy = Policy::Load(path);
  ASSERT_TRUE(policy.ok()) << policy.status().message();
  EXPECT_EQ((*policy)->classes()[2].sl, 3);
  EXPECT_EQ((*policy)->origin(), path);
  EXPECT_EQ(*Policy::Load(""), Policy::Default());
  EXPECT_EQ((*Policy::Load("class = [{name = \"bulk\", sl = 4}]"))->classes()[2].sl, 4);
  EXPECT_EQ((*Policy::Load("[[class]]\nname='bulk'\nsl=5"))->classes()[2].sl, 5);
  EXPECT_THAT(ErrorOf(Policy::Load("class = 1")), StartsWith("SLUICE_POLICY:1: "));
}

TEST_F(PolicyFilesTest, FilesThatAreNone) {
  EXPECT_THAT(ErrorOf(Policy::Load(dir_ / "none.toml")),
              AllOf(HasSubstr("none.toml"), HasSubstr("No such file")));
  EXPECT_THAT(ErrorOf(Policy::Load(dir_)), HasSubstr("is a directory"));
  EXPECT_THAT(ErrorOf(Policy::Load("/dev/null")), HasSubstr("not a regular file"));
  const std::string pipe = dir_ / "pipe";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_THAT(ErrorOf(Policy::Load(pipe)), HasSubstr("not a regular file"));
  EXPECT_THAT(ErrorOf(Policy::Load(Write(""))), HasSubstr("empty"));
  EXPECT_THAT(ErrorOf(Policy::Load(Write(std::string((1 << 20) + 1, '\n')))), HasSubstr("more than 1048576"));
  EXPECT_THAT(ErrorOf(Policy::Load(Write("\xff\xfe\x00"))), HasSubstr(":1: not TOML"));
  EXPECT_THAT(ErrorOf(Policy::Load(dir_ / "\n=")), StartsWith("SLUICE_POLICY:1: not TOML"));
}

}  // namespace
}  // namespace sluice
