#include "measure/child_process.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstring>
#include <thread>
#include <utility>

#include "base/stopwatch.h"

namespace nibble::measure {

Result<ChildProcess> ChildProcess::Start(const std::vector<std::string>& command,
                                         const std::filesystem::path& log) {
  std::vector<char*> arguments;
  arguments.reserve(command.size() + 1);
  for (const std::string& word : command) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  posix_spawn_file_actions_t files;
  ::posix_spawn_file_actions_init(&files);
  ::posix_spawn_file_actions_addopen(&files, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  ::posix_spawn_file_actions_addopen(&files, STDOUT_FILENO, log.c_str(),
                                     O_WRONLY | O_CREAT | O_APPEND, 0644);
  ::posix_spawn_file_actions_adddup2(&files, STDOUT_FILENO, STDERR_FILENO);
  posix_spawnattr_t attributes;
  ::posix_spawnattr_init(&attributes);
  // Signals that we have blocked are not to be blocked there.
  sigset_t none;
  ::sigemptyset(&none);
  ::posix_spawnattr_setsigmask(&attributes, &none);
  ::posix_spawnattr_setpgroup(&attributes, 0);
  ::posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK);
  pid_t pid = 0;
  const int fault =
      ::posix_spawnp(&pid, arguments[0], &files, &attributes, arguments.data(), environ);
  ::posix_spawnattr_destroy(&attributes);
  ::posix_spawn_file_actions_destroy(&files);
  if (fault != 0) {
    return Fail("cannot start {} with its output in {}: {}", command[0], log.string(),
                std::strerror(fault));
  }
  return ChildProcess(pid);
}

ChildProcess::ChildProcess(ChildProcess&& other) noexcept
    : pid_(std::exchange(other.pid_, 0)), wait_status_(other.wait_status_) {}

std::optional<std::string> ChildProcess::Ending() {
  if (int status = 0; !wait_status_.has_value() && ::waitpid(pid_, &status, WNOHANG) == pid_) {
    wait_status_ = status;
  }
  if (!wait_status_.has_value()) return std::nullopt;
  if (WIFSIGNALED(*wait_status_)) return fmt::format("signal {}", WTERMSIG(*wait_status_));
  return fmt::format("exit status {}", WEXITSTATUS(*wait_status_));
}

void ChildProcess::Stop(double grace_s) {
  if (pid_ == 0) return;
  ::kill(-pid_, SIGTERM);
  for (const Stopwatch stopwatch; !Ending().has_value() && stopwatch.seconds() < grace_s;) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  ::kill(-pid_, SIGKILL);
  while (!Ending().has_value()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

}  // namespace nibble::measure
