// Status and Result<T>: how every module reports what the caller or a file got wrong.
//
// A Status is a code and a message of the form "what, which: got, wanted (hint)". Result<T> is
// tl::expected<T, Status> (std::expected needs C++23, which nvcc 13 does not accept). Exceptions never cross
// a module boundary; DSV4_CHECK in check.h is for our own bugs only.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <tl/expected.hpp>
#include <utility>

namespace dsv4 {

// Each code says what a caller can do about it.
enum class StatusCode : uint8_t {
  kOk,
  kInvalidArgument,     // The request or file is wrong; the same call never succeeds.
  kNotFound,            // A named thing (file, tensor, model) does not exist.
  kDataLoss,            // A file is corrupt or truncated.
  kFailedPrecondition,  // The object's state forbids the call (for example: rewind past the kept history).
  kOutOfRange,          // A position or size is past a limit that another request may respect.
  kResourceExhausted,   // Out of memory, pages or queue room; retry later.
  kUnimplemented,       // Valid, but this build or backend cannot do it.
  kUnavailable,         // Temporary: a device or service is not ready; retry.
  kCancelled,           // The caller asked to stop.
  kDeadlineExceeded,    // Time ran out before the work was done.
  kInternal,            // An invariant of ours broke below this call.
};

// "INVALID_ARGUMENT" and so on.
std::string_view StatusCodeName(StatusCode code);

class [[nodiscard]] Status {
 public:
  Status() = default;  // Ok.
  Status(StatusCode code, std::string message) : code_(code), message_(std::move(message)) {}

  bool ok() const { return code_ == StatusCode::kOk; }
  StatusCode code() const { return code_; }
  const std::string& message() const { return message_; }

  // "INVALID_ARGUMENT: tensor ...".
  std::string ToString() const;
  // The same code with "<context>: " put in front of the message. Ok stays Ok.
  Status WithContext(std::string_view context) const;

  friend bool operator==(const Status& a, const Status& b) = default;

 private:
  StatusCode code_ = StatusCode::kOk;
  std::string message_;
};

template <typename T>
using Result = tl::expected<T, Status>;

inline tl::unexpected<Status> Error(StatusCode code, std::string message) {
  return tl::unexpected<Status>(Status(code, std::move(message)));
}
inline tl::unexpected<Status> Error(Status status) { return tl::unexpected<Status>(std::move(status)); }

inline Status InvalidArgument(std::string message) {
  return {StatusCode::kInvalidArgument, std::move(message)};
}
inline Status NotFound(std::string message) { return {StatusCode::kNotFound, std::move(message)}; }
inline Status DataLoss(std::string message) { return {StatusCode::kDataLoss, std::move(message)}; }
inline Status FailedPrecondition(std::string message) {
  return {StatusCode::kFailedPrecondition, std::move(message)};
}
inline Status OutOfRange(std::string message) { return {StatusCode::kOutOfRange, std::move(message)}; }
inline Status ResourceExhausted(std::string message) {
  return {StatusCode::kResourceExhausted, std::move(message)};
}
inline Status Unimplemented(std::string message) { return {StatusCode::kUnimplemented, std::move(message)}; }
inline Status Cancelled(std::string message) { return {StatusCode::kCancelled, std::move(message)}; }
inline Status Internal(std::string message) { return {StatusCode::kInternal, std::move(message)}; }

}  // namespace dsv4

#define DSV4_CONCAT_INNER(a, b) a##b
#define DSV4_CONCAT(a, b) DSV4_CONCAT_INNER(a, b)

// Returns from the calling function (which returns Status) when the Status expression is not Ok.
#define DSV4_RETURN_IF_ERROR(expression)       \
  do {                                         \
    ::dsv4::Status dsv4_status = (expression); \
    if (!dsv4_status.ok()) return dsv4_status; \
  } while (false)

// The same inside a function that returns Result<T>.
#define DSV4_TRY(expression)                                             \
  do {                                                                   \
    ::dsv4::Status dsv4_status = (expression);                           \
    if (!dsv4_status.ok()) return ::dsv4::Error(std::move(dsv4_status)); \
  } while (false)

// DSV4_ASSIGN_OR_RETURN(auto x, F()): declares x from a Result, or returns its error from a Result<T>
// function.
#define DSV4_ASSIGN_OR_RETURN(declaration, expression)                                      \
  DSV4_ASSIGN_OR_RETURN_INNER(DSV4_CONCAT(dsv4_result_, __LINE__), declaration, expression, \
                              ::dsv4::Error(std::move(DSV4_CONCAT(dsv4_result_, __LINE__).error())))
// The same inside a function that returns Status.
#define DSV4_ASSIGN_OR_RETURN_STATUS(declaration, expression)                               \
  DSV4_ASSIGN_OR_RETURN_INNER(DSV4_CONCAT(dsv4_result_, __LINE__), declaration, expression, \
                              std::move(DSV4_CONCAT(dsv4_result_, __LINE__).error()))
#define DSV4_ASSIGN_OR_RETURN_INNER(temporary, declaration, expression, failure) \
  auto temporary = (expression);                                                 \
  if (!temporary.has_value()) return failure;                                    \
  declaration = std::move(*temporary)
