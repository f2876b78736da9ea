// A program that we start, watch and stop. It leads a process group of its own, so that what it
// starts itself ends with it, and Ctrl-C reaches us alone. Tested by matrix_test.cc.
#pragma once

#include <sys/types.h>

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"

namespace nibble::measure {

class ChildProcess {
 public:
  // command: a program, looked for in PATH, and its arguments. Its stdin is empty; what it prints
  // is appended to `log`. Error: no such program or log.
  static Result<ChildProcess> Start(const std::vector<std::string>& command,
                                    const std::filesystem::path& log);

  ChildProcess(ChildProcess&& other) noexcept;
  ChildProcess& operator=(ChildProcess&&) = delete;
  ~ChildProcess() { Stop(0); }

  // How it ended, as in "exit status 1" or "signal 9"; nothing while it runs.
  std::optional<std::string> Ending();
  bool Succeeded() const { return wait_status_ == 0; }  // once it has ended

  // SIGTERM to the whole group; SIGKILL to what is left of it after grace_s.
  void Stop(double grace_s);

 private:
  explicit ChildProcess(pid_t pid) : pid_(pid) {}

  pid_t pid_;  // 0: moved from
  std::optional<int> wait_status_ = {};
};

}  // namespace nibble::measure
