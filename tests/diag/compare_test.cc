// The check compare against dumps. A run compares clean with itself, and an altered tensor is caught where it
// was altered. Seeded faults are localised to their op by shared inputs.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <iostream>

#include "base/temporary_directory_testing.h"
#include "diag/checks/compare_check.h"
#include "diag/dump.h"
#include "diag/live_run.h"
#include "io/safetensors_writer.h"
#include "tests/diag/seeded_ops.h"
#include "tests/diag/subjects.h"

namespace dsv4::testing {
namespace {

using diag::CheckReport;
using diag::CompareMode;
using diag::Verdict;

CheckReport Compare(const DiagnosedModel& model, MemoryDump& other, CompareMode mode,
                    std::optional<double> bound = std::nullopt) {
  const Result<CheckReport> report =
      diag::CheckCompare(model.subject(), model.tokens, other, {.mode = mode, .bound = bound});
  EXPECT_TRUE(report.has_value()) << report.error().message();
  return report.has_value() ? *report : CheckReport{};
}

// --- The dump itself. ---

TEST(DumpTest, WhatIsWrittenIsReadBack) {
  for (const model::Numerics numerics : {model::Numerics::kPlain, model::Numerics::kRelease}) {
    DiagnosedModel model = DiagnoseGolden("fp8_mxfp4", numerics);
    model.tokens.resize(20);
    const MemoryDump want = RunDump(model);
    const TemporaryDirectory directory;
    // In two passes, so that rows are gathered from several places.
    auto writer = diag::DumpWriter::Create(model.subject().context(), directory / "dump");
    ASSERT_TRUE(writer.has_value()) << writer.error().message();
    ASSERT_TRUE(diag::RunTokens(model.subject(), model.tokens, {{13}}, model::LogitsRows::kAll, writer->get())
                    .has_value());
    const Status written = (*writer)->Finish();
    ASSERT_TRUE(written.ok()) << written.message();
    Result<diag::DumpFiles> dump = diag::DumpFiles::Open(directory / "dump");
    ASSERT_TRUE(dump.has_value()) << dump.error().message();
    ASSERT_EQ(dump->num_tensors(), want.tensors.size());
    for (const diag::RecordedTensor& tensor : want.tensors) {
      if (tensor.name == "pass.chunks") continue;  // Says how the run was cut.
      ASSERT_TRUE(dump->Has(tensor.layer, tensor.name)) << tensor.layer << " " << tensor.name;
      const auto rows = dump->Rows(tensor.layer, tensor.name, 0, tensor.num_rows, tensor.width);
      ASSERT_TRUE(rows.has_value()) << rows.error().message();
      EXPECT_EQ(*rows, tensor.values) << tensor.name;
      EXPECT_FALSE(dump->Rows(tensor.layer, tensor.name, 1, tensor.num_rows, tensor.width).has_value());
      if (tensor.num_rows == 0) continue;
      EXPECT_FALSE(dump->Rows(tensor.layer, tensor.name, 0, 1, tensor.width + 1).has_value());
    }
    EXPECT_EQ(dump->TokenIds(), model.tokens);
    EXPECT_EQ(dump->rounds_to_bf16(), numerics == model::Numerics::kRelease);
    EXPECT_FALSE(diag::DumpWriter::Create(model.subject().context(), directory / "dump").has_value())
        << "overwrites a dump";
  }
}

TEST(DumpTest, ARunThatFailsLeavesNothing) {
  DiagnosedModel model = DiagnoseGolden("tf_narrow", model::Numerics::kPlain);
  const TemporaryDirectory directory;
  for (const bool was_there : {false, true}) {
    if (was_there) std::filesystem::create_directory(directory / "dump");
    {
      auto writer = diag::DumpWriter::Create(model.subject().context(), directory / "dump");
      ASSERT_TRUE(writer.has_value());
      ASSERT_TRUE(diag::RunTokens(model.subject(), std::span(model.tokens).first(3), {},
                                  model::LogitsRows::kAll, writer->get())
                      .has_value());
      EXPECT_FALSE(std::filesystem::is_empty(directory / "dump"));
    }
    EXPECT_EQ(std::filesystem::exists(directory / "dump"), was_there);
    EXPECT_TRUE(!was_there || std::filesystem::is_empty(directory / "dump"));
  }
}

TEST(DumpTest, TokenIdsThatNoVocabularyHasAreNone) {
  const TemporaryDirectory directory;
  auto writer =
      io::SafetensorsWriter::Create(directory / "ids.safetensors", {{"pass.token_ids", DType::kF32, {3}}});
  ASSERT_TRUE(writer.has_value());
  const float ids[] = {7, 1e18F, -3};
  ASSERT_TRUE(writer->Append(std::as_bytes(std::span(ids))).ok());
  ASSERT_TRUE(writer->Finish().ok());
  EXPECT_EQ(diag::DumpFiles::Open(directory / "")->TokenIds(), (std::vector<int32_t>{7, -1, -1}));
}

TEST(DumpTest, HostileDirectoriesAreErrors) {
  const TemporaryDirectory directory;
  EXPECT_EQ(diag::DumpFiles::Open(directory / "absent").error().code(), StatusCode::kNotFound);
  const auto write = [&](const std::string& sub, const std::string& file, const io::TensorSpec& spec) {
    std::filesystem::create_directories(directory / sub);
    Result<io::SafetensorsWriter> writer =
        io::SafetensorsWriter::Create(directory / (sub + "/" + file), {spec});
    ASSERT_TRUE(writer.has_value());
    ASSERT_TRUE(writer->Append(std::vector<std::byte>(static_cast<size_t>(spec.num_bytes()))).ok());
    ASSERT_TRUE(writer->Finish().ok());
  };
  std::filesystem::create_directories(directory / "empty");
  EXPECT_EQ(diag::DumpFiles::Open(directory / "empty").error().code(), StatusCode::kNotFound);
  write("dtype", "a.safetensors", {"embed", DType::kU8, {2, 2}});
  write("layer", "a.safetensors", {"layers.x.attn.q", DType::kF32, {2, 2}});
  write("rank", "a.safetensors", {"embed", DType::kF32, {}});
  write("twice", "a.safetensors", {"embed", DType::kF32, {2, 2}});
  write("twice", "b.safetensors", {"embed", DType::kF32, {2, 2}});
  write("wide", "a.safetensors", {"embed", DType::kF32, {0, int64_t{1} << 40, int64_t{1} << 40}});
  for (const char* name : {"dtype", "layer", "rank", "twice", "wide"}) {
    const Result<diag::DumpFiles> dump = diag::DumpFiles::Open(directory / name);
    ASSERT_FALSE(dump.has_value()) << name;
    EXPECT_EQ(dump.error().code(), StatusCode::kInvalidArgument) << name;
    EXPECT_NE(dump.error().message().find("tensor"), std::string::npos) << dump.error().message();
  }
}

// --- Healthy runs. ---

TEST(CompareTest, ARunIsItsOwnEqual) {
  for (const std::string golden : {"tf_narrow", "nvfp4_experts"}) {
    const DiagnosedModel model = DiagnoseGolden(golden, model::Numerics::kPlain);
    MemoryDump dump = RunDump(model);
    for (const CompareMode mode : {CompareMode::kAccumulated, CompareMode::kSharedInputs}) {
      const CheckReport report = Compare(model, dump, mode, 0.0);
      EXPECT_EQ(report.verdict, Verdict::kPass) << ToText(report);
    }
  }
}

TEST(LiveRunTest, IsComparedInStep) {
  DiagnosedModel ours = DiagnoseGolden("nvfp4_experts", model::Numerics::kRelease);
  DiagnosedModel theirs = DiagnoseGolden("nvfp4_experts", model::Numerics::kRelease);
  for (const CompareMode mode : {CompareMode::kAccumulated, CompareMode::kSharedInputs}) {
    diag::LiveRun run(theirs.subject(), ours.tokens);
    const Result<CheckReport> report =
        diag::CheckCompare(ours.subject(), ours.tokens, run, {.mode = mode, .bound = 0.0});
    ASSERT_TRUE(report.has_value()) << report.error().message();
    EXPECT_EQ(report->verdict, Verdict::kPass) << ToText(*report);
    EXPECT_TRUE(report->evidence[0].starts_with("82 tensors of 264 tokens")) << report->evidence[0];
  }
}

TEST(LiveRunTest, EndsWhereNobodyAsksAndReportsWhatFailed) {
  DiagnosedModel theirs = DiagnoseGolden("tf_narrow", model::Numerics::kPlain);
  {
    diag::LiveRun run(theirs.subject(), theirs.tokens);
    EXPECT_TRUE(run.Rows(-1, "embed", 0, static_cast<int64_t>(theirs.tokens.size()),
                         theirs.model->config().hidden_size * theirs.model->config().hc_mult)
                    .has_value());
    EXPECT_EQ(run.Rows(0, "no such tensor", 0, 1, 1).error().code(), StatusCode::kInternal);
  }
  Mutation mutation;
  mutation.ops = [](ops::OpTable& table) {
    table.attention = [](ops::OpContext&, const ops::AttentionArgs&) {
      return Status(StatusCode::kInternal, "broken");
    };
  };
  DiagnosedModel broken = DiagnoseGolden("tf_narrow", model::Numerics::kPlain, mutation);
  diag::LiveRun run(broken.subject(), theirs.tokens);
  const Result<CheckReport> report = diag::CheckCompare(theirs.subject(), theirs.tokens, run, {});
  ASSERT_FALSE(report.has_value());
  EXPECT_NE(report.error().message().find("broken"), std::string::npos) << report.error().message();
}

// --- Altered dumps. ---

TEST(CompareTest, AnAlteredTensorIsCaughtAtItsPlace) {
  const DiagnosedModel model = DiagnoseGolden("tf_narrow", model::Numerics::kPlain);
  const MemoryDump clean = RunDump(model);
  for (const auto& [layer, name] : std::vector<std::pair<int, std::string>>{{0, "attn.q_lora"},
                                                                            {1, "attn.o"},
                                                                            {1, "ffn.shared.hidden"},
                                                                            {2, "ffn.routed"},
                                                                            {3, "attn.streams"},
                                                                            {-1, "head.norm"},
                                                                            {-1, "logits"}}) {
    MemoryDump altered = clean;
    for (diag::RecordedTensor& tensor : altered.tensors) {
      if (tensor.layer != layer || tensor.name != name) continue;
      for (float& value : tensor.values) value *= 1.01F;
    }
    const CheckReport report = Compare(model, altered, CompareMode::kAccumulated);
    ASSERT_EQ(report.verdict, Verdict::kFinding) << layer << " " << name;
    EXPECT_EQ(report.location->layer, layer) << report.headline;
    EXPECT_EQ(report.location->tensor, name) << report.headline;
  }
}

TEST(CompareTest, LogitsAreComparedByKlAndTop1) {
  const DiagnosedModel model = DiagnoseGolden("tf_narrow", model::Numerics::kPlain);
  MemoryDump dump = RunDump(model);
  const auto line = [&] {
    for (const std::string& text : Compare(model, dump, CompareMode::kAccumulated).evidence) {
      if (text.starts_with("logits")) return text;
    }
    return std::string();
  };
  const std::string count = std::to_string(model.tokens.size());
  EXPECT_EQ(line(), "logits: KL(other || ours) mean 0, worst 0 nats; top-1 agrees at " + count + " of " +
                        count + " positions");
  for (diag::RecordedTensor& tensor : dump.tensors) {
    if (tensor.name == "logits")
      std::transform(tensor.values.begin(), tensor.values.end(), tensor.values.begin(), std::negate<>());
  }
  EXPECT_NE(line().find("top-1 agrees at 0 of " + count), std::string::npos) << line();
}

TEST(CompareTest, PartialDumpsAreComparedWhereTheyCan) {
  const DiagnosedModel model = DiagnoseGolden("tf_narrow", model::Numerics::kPlain);
  MemoryDump dump = RunDump(model);
  std::erase_if(dump.tensors, [](const auto& tensor) { return tensor.name != "ffn.streams"; });
  EXPECT_EQ(Compare(model, dump, CompareMode::kAccumulated).verdict, Verdict::kPass);
  dump.tensors[0].name = "no such tensor";
  dump.tensors.resize(1);
  EXPECT_FALSE(diag::CheckCompare(model.subject(), model.tokens, dump, {}).has_value());
}

TEST(CompareTest, ChoicesThatCannotBeAreErrors) {
  const DiagnosedModel model = DiagnoseGolden("tf_narrow", model::Numerics::kPlain);
  for (const float value : {std::nanf(""), 1e30F, 1e6F, -5.0F}) {
    MemoryDump dump = RunDump(model);
    for (diag::RecordedTensor& tensor : dump.tensors) {
      if (tensor.name == "ffn.router.indices") tensor.values[0] = value;
    }
    EXPECT_FALSE(diag::CheckCompare(model.subject(), model.tokens, dump, {.mode = CompareMode::kSharedInputs})
                     .has_value())
        << value;
  }
}

TEST(CompareTest, RowsOfAnotherSizeAreErrors) {
  const DiagnosedModel model = DiagnoseGolden("tf_narrow", model::Numerics::kPlain);
  MemoryDump dump = RunDump(model);
  dump.tensors.erase(dump.tensors.begin(), dump.tensors.end() - 1);
  dump.tensors[0].width -= 1;
  const Result<CheckReport> report = diag::CheckCompare(model.subject(), model.tokens, dump, {});
  ASSERT_FALSE(report.has_value());
  EXPECT_EQ(report.error().code(), StatusCode::kInvalidArgument);
}

// --- Seeded faults: the dump is the healthy run's, the model under diagnosis has the fault. ---

TEST(SeededOpsTest, SharedInputsNameTheFaultyOp) {
  int found = 0;
  int localised = 0;
  const std::vector<SeededOp> seeded = SeededOps();
  for (const SeededOp& fault : seeded) {
    const Mutation mutation = AllSeededMistakes().at(fault.mistake).mutation;
    Mutation options_only;
    options_only.options = mutation.options;
    MemoryDump healthy = RunDump(DiagnoseGolden(fault.golden, fault.numerics, options_only));
    const DiagnosedModel faulty = DiagnoseGolden(fault.golden, fault.numerics, mutation);
    // Backends differ by rounding; here both sides run the same arithmetic, so the bound can be sharp.
    const CheckReport report = Compare(faulty, healthy, CompareMode::kSharedInputs, 1e-4);
    const bool right = report.location && NamesOneOf(report.location->op, ReplacedOps(mutation));
    found += report.verdict == Verdict::kFinding ? 1 : 0;
    localised += right ? 1 : 0;
    if (!right) std::cout << "  " << fault.mistake << " not localised: " << report.headline << "\n";
  }
  std::cout << "  " << localised << " of " << seeded.size() << " localised, " << found << " found\n";
  EXPECT_GE(seeded.size(), 25U);
  EXPECT_GE(localised * 100, static_cast<int>(seeded.size()) * 95);
}

}  // namespace
}  // namespace dsv4::testing
