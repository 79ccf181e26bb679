// Tests of the safetensors parser: what is read, hostile headers and lengths, each fault named.
#include "io/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace dsv4::io {
namespace {

using ::testing::HasSubstr;

std::string File(const std::string& header, size_t data_bytes) {
  std::string file;
  for (size_t i = 0; i < 8; ++i) file.push_back(static_cast<char>((header.size() >> (8 * i)) & 0xFF));
  return file + header + std::string(data_bytes, '\1');
}

Result<std::vector<StoredTensor>> Parse(const std::string& file) {
  return ParseSafetensors(std::as_bytes(std::span(file)), "f");
}

TEST(Safetensors, ReadsNamesShapesAndBytes) {
  const std::string file =
      File(R"({"__metadata__":{"format":"pt"},"b":{"dtype":"U8","shape":[3],"data_offsets":[8,11]},)"
           R"("a":{"dtype":"BF16","shape":[2,2],"data_offsets":[0,8]}}   )",
           11);
  const auto tensors = Parse(file);
  ASSERT_TRUE(tensors.has_value()) << tensors.error().message();
  ASSERT_EQ(tensors->size(), 2U);
  EXPECT_EQ((*tensors)[0].name, "b");
  EXPECT_EQ((*tensors)[1].dims, (std::vector<int64_t>{2, 2}));
  EXPECT_EQ((*tensors)[1].dtype, DType::kBF16);
  EXPECT_EQ((*tensors)[0].bytes.data() - (*tensors)[1].bytes.data(), 8);
}

TEST(Safetensors, ScalarsEmptyTensorsAndUnknownDtypesAreListed) {
  const auto tensors = Parse(File(
      R"({"s":{"dtype":"F32","shape":[],"data_offsets":[0,4]},"e":{"dtype":"F32","shape":[0,7],"data_offsets":[4,4]},)"
      R"("x":{"dtype":"Q3","shape":[5],"data_offsets":[4,6]}})",
      6));
  ASSERT_TRUE(tensors.has_value()) << tensors.error().message();
  EXPECT_FALSE((*tensors)[2].dtype.has_value());
  EXPECT_EQ((*tensors)[2].dtype_name, "Q3");
}

struct BadHeader {
  const char* header;
  size_t data_bytes;
  const char* message;
};

class SafetensorsBadHeader : public ::testing::TestWithParam<BadHeader> {};

TEST_P(SafetensorsBadHeader, IsANamedError) {
  const auto tensors = Parse(File(GetParam().header, GetParam().data_bytes));
  ASSERT_FALSE(tensors.has_value());
  EXPECT_THAT(tensors.error().message(), HasSubstr(GetParam().message));
}

INSTANTIATE_TEST_SUITE_P(
    All, SafetensorsBadHeader,
    ::testing::Values(
        BadHeader{"", 0, "not valid JSON"}, BadHeader{"{", 0, "not valid JSON"},
        BadHeader{"[]", 0, "an array is not allowed"}, BadHeader{"{} x", 0, "not valid JSON"},
        BadHeader{"{\"\xff\":1}", 0, "not valid JSON"},
        BadHeader{R"({"a":1})", 0, "tensor a: the number 1 is not allowed here"},
        BadHeader{R"({"a":{"dtype":3,"shape":[1],"data_offsets":[0,4]}})", 4,
                  "tensor a, key dtype: the number 3"},
        BadHeader{R"({"a":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}})", 4,
                  "key shape: the number -1"},
        BadHeader{R"({"a":{"dtype":"F32","shape":[1.5],"data_offsets":[0,4]}})", 4,
                  "key shape: the number 1.5"},
        BadHeader{R"({"a":{"dtype":"F32","shape":[1e400],"data_offsets":[0,4]}})", 4, "not valid JSON"},
        BadHeader{R"({"a":{"dtype":"F32","shape":[18446744073709551615],"data_offsets":[0,4]}})", 4,
                  "key shape"},
        BadHeader{R"({"a":{"dtype":"F32","shape":[[1]],"data_offsets":[0,4]}})", 4,
                  "an array is not allowed"},
        BadHeader{R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4,8]}})", 4, "3 numbers, wanted 2"},
        BadHeader{R"({"a":{"dtype":"F32","shape":[1]}})", 4, "data_offsets is missing"},
        BadHeader{R"({"a":{"shape":[1],"data_offsets":[0,4]}})", 4, "dtype is missing"},
        BadHeader{R"({"a":{"dtype":"F32","data_offsets":[0,4]}})", 4, "shape is missing"},
        BadHeader{R"({"a":{"dtype":"F32","dtype":"F16","shape":[1],"data_offsets":[0,4]}})", 4, "used twice"},
        BadHeader{
            R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"a":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})",
            2, "tensor a: name used twice"},
        BadHeader{R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[4,0]}})", 4, "run backwards"},
        BadHeader{R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", 4, "is the file truncated"},
        BadHeader{R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}})", 4, "takes 64 bits"},
        BadHeader{R"({"a":{"dtype":"F4","shape":[1],"data_offsets":[0,1]}})", 1, "takes 4 bits"},
        BadHeader{R"({"a":{"dtype":"F32","shape":[4611686018427387904,4],"data_offsets":[0,4]}})", 4,
                  "overflows 64 bits"},
        BadHeader{R"({"a":{"dtype":"F64","shape":[576460752303423488],"data_offsets":[0,4]}})", 4,
                  "overflows 64 bits"},
        BadHeader{
            R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"b":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}})",
            3, "tensor b: begins at data byte 1, inside tensor a"},
        BadHeader{
            R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"b":{"dtype":"U8","shape":[1],"data_offsets":[2,3]}})",
            3, "forbids gaps"},
        BadHeader{R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})", 3,
                  "3 bytes of data, the tensors cover 1"},
        BadHeader{R"({"a":{"dtype":"U8","shape":[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1],"data_offsets":[0,1]}})",
                  1, "more than 16 numbers"},
        BadHeader{R"({"__metadata__":{"format":1}})", 0, "__metadata__"},
        BadHeader{R"({"a":{"dtype":{"x":1}}})", 0, "an object is not allowed"}));

TEST(Safetensors, LengthFieldIsCheckedBeforeTheHeader) {
  EXPECT_THAT(Parse("1234").error().message(), HasSubstr("too short"));
  EXPECT_THAT(Parse(File("{}", 0).substr(0, 9)).error().message(), HasSubstr("the file ends after 1"));
  EXPECT_THAT(Parse(std::string(8, '\xff') + "{}").error().message(), HasSubstr("at most 100000000"));
  EXPECT_EQ(Parse(std::string(8, '\xff') + "{}").error().code(), StatusCode::kDataLoss);
}

TEST(Safetensors, AZeroByteIsNoEnd) {
  using namespace std::string_literals;
  EXPECT_THAT(Parse(File("{}\0garbage"s, 0)).error().message(), HasSubstr("header: a zero byte at byte 2"));
  EXPECT_THAT(ParseSafetensorsIndex("{\"weight_map\":{}}\0x"s, "i").error().message(),
              HasSubstr("i: a zero byte at byte 17"));
}

TEST(Safetensors, DeeplyNestedHeaderDoesNotExhaustTheStack) {
  EXPECT_FALSE(Parse(File("{\"a\":" + std::string(1000000, '['), 0)).has_value());
}

TEST(SafetensorsIndex, ReadsTheMapAndSkipsTheRest) {
  const auto entries = ParseSafetensorsIndex(
      R"({"metadata":{"total_size":12,"more":[{"weight_map":null}]},"weight_map":{"a":"m-1.safetensors"}})",
      "i");
  ASSERT_TRUE(entries.has_value()) << entries.error().message();
  ASSERT_EQ(entries->size(), 1U);
  EXPECT_EQ((*entries)[0].file, "m-1.safetensors");
}

TEST(SafetensorsIndex, NamesWhatIsWrong) {
  const auto message = [](const char* json) {
    const auto entries = ParseSafetensorsIndex(json, "i");
    return entries ? std::string("no error") : entries.error().message();
  };
  EXPECT_THAT(message("{}"), HasSubstr("weight_map is missing"));
  EXPECT_THAT(message("[]"), HasSubstr("an array"));
  EXPECT_THAT(message("3"), HasSubstr("a number"));
  EXPECT_THAT(message(R"({"weight_map":[]})"), HasSubstr("weight_map"));
  EXPECT_THAT(message(R"({"weight_map":"x.safetensors"})"), HasSubstr("weight_map"));
  EXPECT_THAT(message(R"({"weight_map":{"a":1}})"), HasSubstr("tensor a: a number"));
  EXPECT_THAT(message(R"({"weight_map":{"a":{}}})"), HasSubstr("an object"));
  EXPECT_THAT(message(R"({"weight_map":{"a":"x.safetensors","a":"y.safetensors"}})"),
              HasSubstr("used twice"));
  EXPECT_THAT(message(R"({"weight_map":{},"weight_map":{}})"), HasSubstr("used twice"));
  for (const char* file : {"../x.safetensors", "/x.safetensors", "x.bin", "", ".x.safetensors",
                           "a\\\\b.safetensors", "a\\u0000.safetensors"}) {
    EXPECT_THAT(message((R"({"weight_map":{"a":")" + std::string(file) + "\"}}").c_str()),
                HasSubstr("not a plain"));
  }
}

}  // namespace
}  // namespace dsv4::io
