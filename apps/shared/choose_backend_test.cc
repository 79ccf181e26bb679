// `--backend auto` on machines that this one is not.
#include "apps/shared/choose_backend.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "apps/shared/rank_group.h"

namespace dsv4::apps {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

struct Machine {
  backend::GpuSurvey survey;
  GpuFit fit = {};
  int surveys = 0;

  Machine& Gpu(const std::string& name, bool has_code) {
    survey.gpus.push_back({.info = {.index = static_cast<int>(survey.gpus.size()), .name = name, .major = 9},
                           .has_code = has_code});
    survey.seen.push_back(name);
    return *this;
  }
  std::string Choose(ModelFlags& flags) {
    return ChooseBackend(flags, {.survey =
                                     [this] {
                                       ++surveys;
                                       return survey;
                                     },
                                 .seen = [this] { return survey.seen; },
                                 .fit = [this](const ModelFlags&) { return fit; }});
  }
};

Machine CudaBuild() { return {.survey = {.code = "8.0 and 9.0", .gpus = {}, .seen = {}, .fault = {}}}; }

ModelFlags Auto() {
  ModelFlags flags;
  flags.backend = kBackendAuto;
  return flags;
}

TEST(ChooseBackend, AUsableGpuIsTakenWithoutAWord) {
  ModelFlags flags = Auto();
  EXPECT_EQ(CudaBuild().Gpu("NVIDIA H200", true).Choose(flags), "");
  EXPECT_EQ(flags.backend, "cuda");
  EXPECT_EQ(flags.device, 0);
  EXPECT_EQ(flags.experts, "");
}

TEST(ChooseBackend, TheFirstWithCodeIsTaken) {
  ModelFlags flags = Auto();
  EXPECT_EQ(CudaBuild().Gpu("old", false).Gpu("NVIDIA H200", true).Choose(flags), "");
  EXPECT_EQ(flags.device, 1);
}

TEST(ChooseBackend, WithoutAGpuTheCpuIsTakenWithoutAWord) {
  for (Machine machine : {CudaBuild(), Machine()}) {
    ModelFlags flags = Auto();
    EXPECT_EQ(machine.Choose(flags), "");
    EXPECT_EQ(flags.backend, "cpu");
  }
}

TEST(ChooseBackend, AnIdleGpuIsNamedWithTheReason) {
  Machine no_cuda;
  no_cuda.survey.seen = {"NVIDIA H200"};
  Machine old_driver = CudaBuild();
  old_driver.survey.seen = {"NVIDIA H200"};
  old_driver.survey.fault = "the driver is too old";
  Machine no_code = CudaBuild().Gpu("NVIDIA H200", false);
  Machine no_room = CudaBuild().Gpu("NVIDIA H200", true);
  no_room.fit = {.room = GpuFit::Room::kNone, .text = "3.00 GB are free and 9.00 GB are wanted"};
  const std::pair<Machine*, const char*> machines[] = {{&no_cuda, "this build has no CUDA backend"},
                                                       {&old_driver, "the driver is too old"},
                                                       {&no_code, "machine code for 8.0 and 9.0"},
                                                       {&no_room, "3.00 GB are free and 9.00 GB are wanted"}};
  for (const auto& [machine, reason] : machines) {
    ModelFlags flags = Auto();
    const std::string line = machine->Choose(flags);
    EXPECT_THAT(line, AllOf(HasSubstr("GPU NVIDIA H200: idle, "), HasSubstr(reason)));
    EXPECT_EQ(line.find('\n'), std::string::npos);
    EXPECT_EQ(flags.backend, "cpu");
    EXPECT_THAT(WantsGpu("--gpu-memory 8", flags).message(),
                AllOf(HasSubstr("--gpu-memory 8: wants a GPU: "), HasSubstr(reason)));
  }
}

TEST(ChooseBackend, ExpertsGoToTheHostWhereAGpuHasNoRoomForAll) {
  Machine machine = CudaBuild().Gpu("NVIDIA L4", true);
  machine.fit = {.room = GpuFit::Room::kWithoutExperts, .text = "23 GB are free and 156 GB are wanted"};
  ModelFlags flags = Auto();
  EXPECT_THAT(machine.Choose(flags),
              AllOf(HasSubstr("GPU NVIDIA L4: 23 GB are free"), HasSubstr("--experts auto")));
  EXPECT_EQ(flags.backend, "cuda");
  EXPECT_EQ(flags.experts, "auto");
  ModelFlags named = Auto();
  named.experts = "host=100%";
  EXPECT_EQ(machine.Choose(named), "");
  EXPECT_EQ(named.experts, "host=100%");
}

TEST(ChooseBackend, ANamedBackendStays) {
  Machine machine = CudaBuild().Gpu("NVIDIA H200", true);
  ModelFlags flags;
  flags.backend = "cpu";
  EXPECT_EQ(machine.Choose(flags), "GPU NVIDIA H200: idle, as --backend cpu was named");
  EXPECT_EQ(flags.backend, "cpu");
  for (const char* const name : {"cuda", "reference"}) {
    Machine none;
    flags.backend = name;
    EXPECT_EQ(none.Choose(flags), "");
    EXPECT_EQ(flags.backend, name);
  }
  EXPECT_EQ(machine.surveys, 0);  // CUDA is not started for it.
}

TEST(ChooseBackend, OptionsOfTheHostChooseTheHost) {
  ModelFlags disk = Auto();
  disk.experts = "disk";
  EXPECT_THAT(CudaBuild().Gpu("NVIDIA H200", true).Choose(disk), HasSubstr("--experts disk"));
  EXPECT_EQ(disk.backend, "cpu");
  ModelFlags isa = Auto();
  isa.host_option = "--isa";
  EXPECT_THAT(CudaBuild().Gpu("NVIDIA H200", true).Choose(isa), HasSubstr("--isa"));
  EXPECT_EQ(isa.backend, "cpu");
}

TEST(ChooseBackend, RanksTakeGpusWhereEachHasOne) {
  ModelFlags flags = Auto();
  flags.num_ranks = 2;
  EXPECT_EQ(CudaBuild().Gpu("a", true).Gpu("b", true).Choose(flags), "");
  EXPECT_EQ(flags.backend, "cuda");
  flags.backend = kBackendAuto;
  EXPECT_EQ(CudaBuild().Gpu("a", true).Choose(flags), "GPU a: idle, 2 ranks want as many GPUs, 1 is here");
  EXPECT_EQ(flags.backend, "cpu");
}

TEST(ChooseBackend, APlanForAGpuWantsNone) {
  for (const bool by_memory : {true, false}) {
    ModelFlags flags = Auto();
    (by_memory ? flags.gpu_memory : flags.host_memory) = 24;
    if (!by_memory) flags.experts = "auto";
    EXPECT_EQ(ChoosePlannedBackend(flags), "");
    EXPECT_EQ(flags.backend, "cuda");
  }
}

TEST(WithBackend, OptionsOfAGpuStayWithIt) {
  ModelFlags flags;
  flags.backend = "cuda";
  flags.experts = "auto";
  flags.gpu_memory = 24;
  const ModelFlags reference = WithBackend(flags, "reference");
  EXPECT_EQ(reference.backend, "reference");
  EXPECT_EQ(reference.experts, "");
  EXPECT_EQ(reference.gpu_memory, 0);
  EXPECT_EQ(WithBackend(flags, "cuda").experts, "auto");
}

TEST(PlacementOf, IsByPurposeOnGpusAndByWordElsewhere) {
  const auto placed = [](const std::string& backend, const std::string& said, const std::string& usually) {
    ModelFlags flags;
    flags.backend = backend;
    flags.placed_for = said;
    flags.usually_for = usually;
    return PlacementOf(flags);
  };
  EXPECT_EQ(placed("cuda", "", "latency"), "tensor");
  EXPECT_EQ(placed("cuda", "throughput", "latency"), "expert,sequences");
  EXPECT_EQ(placed("cuda", "", ""), "expert") << "logits: the bits of one rank";
  EXPECT_EQ(placed("cpu", "", "latency"), "expert");
  EXPECT_EQ(placed("cpu", "throughput", "latency"), "expert,sequences");
  ModelFlags flags;
  flags.backend = "cuda";
  flags.usually_for = "latency";
  flags.experts = "auto";
  EXPECT_EQ(PlacementOf(flags), "pipeline") << "layers of experts are whole";
  flags.placement = "expert,entries";
  EXPECT_EQ(PlacementOf(flags), "expert,entries");
}

TEST(SplitBackendName, HasBackendAndDevice) {
  EXPECT_EQ(SplitBackendName("cuda (NVIDIA H200)").backend, "cuda");
  EXPECT_EQ(SplitBackendName("cuda (NVIDIA H200)").device, "NVIDIA H200");
  EXPECT_EQ(SplitBackendName("cpu (avx2)").device, "CPU (avx2)");
  EXPECT_EQ(SplitBackendName("reference").device, "CPU");
}

}  // namespace
}  // namespace dsv4::apps
