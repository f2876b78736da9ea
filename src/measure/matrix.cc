#include "measure/matrix.h"

#include <fmt/format.h>

#include <algorithm>
#include <csignal>
#include <utility>

#include "base/atomic_file.h"
#include "base/mapped_file.h"
#include "base/stopwatch.h"
#include "measure/child_process.h"
#include "measure/http_client.h"
#include "measure/run.h"

namespace nibble::measure {
namespace {

namespace fs = std::filesystem;

using Say = std::function<void(const std::string&)>;

// While one is there, SIGINT and SIGTERM wait to be taken, so that no server outlives us.
class Interrupts {
 public:
  Interrupts() {
    ::sigemptyset(&signals_);
    ::sigaddset(&signals_, SIGINT);
    ::sigaddset(&signals_, SIGTERM);
    ::pthread_sigmask(SIG_BLOCK, &signals_, &before_);
  }
  ~Interrupts() { ::pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  Interrupts(const Interrupts&) = delete;
  Interrupts& operator=(const Interrupts&) = delete;

  // Sleeps a moment; true from the first signal on.
  bool Wait() {
    constexpr timespec kTick = {.tv_sec = 0, .tv_nsec = 50'000'000};
    taken_ = taken_ || ::sigtimedwait(&signals_, nullptr, &kTick) > 0;
    return taken_;
  }
  bool taken() const { return taken_; }

 private:
  sigset_t signals_ = {};
  sigset_t before_ = {};
  bool taken_ = false;
};

bool Exists(const fs::path& path) {
  std::error_code ignored;
  return fs::exists(path, ignored);
}

void Remove(const fs::path& path) {
  std::error_code ignored;
  fs::remove(path, ignored);
}

std::string LastLineOf(const fs::path& log) {
  std::string text = ReadTextFile(log).value_or("");
  text.erase(text.find_last_not_of(" \r\n") + 1);
  return text.substr(text.find_last_of("\r\n") + 1);
}

Status Ended(const std::string& who, ChildProcess& process, const fs::path& log) {
  return Fail("{} ended with {}: {} ({})", who, *process.Ending(), LastLineOf(log), log.string());
}

// The status of an answer, or 0.
int StatusOf(const std::string& url) {
  HttpClient client;
  const Result<HttpResponse> response = client.Send({.url = url, .timeout_s = 5});
  return response.has_value() ? response->status : 0;
}

// llama.cpp lists its model while it loads, vLLM and nibble answer /health only when they are up.
bool IsReady(const std::string& url) {
  if (StatusOf(url + "/v1/models") != 200) return false;
  const int health = StatusOf(url + "/health");
  return health == 200 || health == 404;
}

// One build's part of the loop.
class BuildRun {
 public:
  BuildRun(const MatrixPlan& plan, const MatrixBuild& build, std::string nibble, const Say& say,
           Interrupts* interrupts)
      : plan_(plan),
        build_(build),
        nibble_(std::move(nibble)),
        say_(say),
        interrupts_(interrupts),
        dir_(plan.out / build.name) {}

  const fs::path& dir() const { return dir_; }
  const std::vector<std::string>& faults() const { return faults_; }

  // plan.json: what was asked of whom. Error: the folder holds something else.
  Status Claim() {
    Json suites = Json::object();
    for (const MatrixSuite& suite : plan_.suites) suites[suite.name] = suite.arguments;
    const fs::path path = dir_ / "plan.json";
    if (Exists(path)) {
      NIBBLE_ASSIGN_OR_RETURN(const Json there, ReadJsonFile(path));
      const Json before = there.value("suites", Json::object());
      std::string difference = FirstDifference(build_.identity, there.value("build", Json()));
      for (const auto& [name, arguments] : before.items()) {
        if (!suites.contains(name)) {
          suites[name] = arguments;
        } else if (difference.empty()) {
          difference = FirstDifference(suites[name], arguments);
        }
      }
      if (!difference.empty()) {
        return Fail("{}: holds runs of another plan{}{}", dir_.string(),
                    difference.starts_with(": ") ? "" : ": ", difference);
      }
    }
    std::error_code fault;
    fs::create_directories(dir_, fault);
    if (fault) return Fail("{}: {}", dir_.string(), fault.message());
    return WriteFile(path, Json{{"build", build_.identity}, {"suites", suites}}.dump(2) + "\n");
  }

  void Run() {
    std::vector<const MatrixSuite*> open;
    for (const MatrixSuite& suite : plan_.suites) {
      if (!Exists(dir_ / suite.name / "summary.json")) open.push_back(&suite);
    }
    if (open.empty()) say_(build_.name + ": all suites were done before");
    if (!open.empty()) {
      Remove(Uploaded());
      if (Status status = ServeAndAsk(open); !status.has_value()) {
        faults_.push_back(fmt::format("{}: {}", build_.name, status.error().message));
        say_(faults_.back());
      }
    }
    if (plan_.upload.empty() || Exists(Uploaded()) || interrupts_->taken()) return;
    if (const Status status = Upload(); !status.has_value()) {
      faults_.push_back(fmt::format("{}: upload: {}", build_.name, status.error().message));
      say_(faults_.back());
    }
  }

 private:
  fs::path Uploaded() const { return dir_ / "uploaded"; }

  // Error: what ends this build's turn.
  Status ServeAndAsk(const std::vector<const MatrixSuite*>& open) {
    if (StatusOf(build_.url + "/v1/models") != 0) {
      return Fail("another server answers at {}", build_.url);
    }
    const fs::path log = dir_ / "server.log";
    say_(build_.name + ": starting");
    NIBBLE_ASSIGN_OR_RETURN(ChildProcess server, ChildProcess::Start(build_.command, log));
    NIBBLE_RETURN_IF_ERROR(WaitUntilReady(server, log));
    Status status;
    for (const MatrixSuite* suite : open) {
      const Status done = Ask(*suite, server, log);
      if (done.has_value()) continue;
      status = Fail("{}: {}", suite->name, done.error().message);
      if (server.Ending().has_value() || interrupts_->taken()) break;
      faults_.push_back(fmt::format("{}: {}", build_.name, status.error().message));
      say_(faults_.back());
      status = {};
    }
    server.Stop(plan_.grace_s);
    return status;
  }

  Status WaitUntilReady(ChildProcess& server, const fs::path& log) {
    const Stopwatch stopwatch;
    while (!IsReady(build_.url)) {
      if (interrupts_->Wait()) return Fail("interrupted");
      if (server.Ending().has_value()) return Ended("the server", server, log);
      if (stopwatch.seconds() > plan_.ready_s) {
        return Fail("the server was not ready in {:g} s (\"ready_s\"): {} ({})", plan_.ready_s,
                    LastLineOf(log), log.string());
      }
    }
    say_(fmt::format("{}: ready after {:.1f} s", build_.name, stopwatch.seconds()));
    return {};
  }

  Status Ask(const MatrixSuite& suite, ChildProcess& server, const fs::path& server_log) {
    std::vector<std::string> command = {nibble_};
    if (suite.name == "bench") {
      command.insert(command.end(), {"bench", build_.url});
    } else {
      command.insert(command.end(), {"eval", build_.url, "--suite", suite.name});
    }
    command.insert(command.end(), suite.arguments.begin(), suite.arguments.end());
    const fs::path out = dir_ / suite.name;
    command.insert(command.end(), {"--out", out.string()});
    const fs::path log = dir_ / (suite.name + ".log");
    const Stopwatch stopwatch;
    NIBBLE_ASSIGN_OR_RETURN(ChildProcess asking, ChildProcess::Start(command, log));
    while (!asking.Ending().has_value()) {
      if (interrupts_->Wait()) return Fail("interrupted");
      if (server.Ending().has_value()) return Ended("the server", server, server_log);
    }
    if (!asking.Succeeded()) {
      Remove(out / "summary.json");  // a bench with failed requests has one
      if (server.Ending().has_value()) return Ended("the server", server, server_log);
      return Ended("it", asking, log);
    }
    say_(fmt::format("{}: {} done in {:.1f} s", build_.name, suite.name, stopwatch.seconds()));
    return {};
  }

  Status Upload() {
    std::vector<std::string> command = plan_.upload;
    for (std::string& word : command) {
      for (const auto& [key, value] :
           {std::pair<std::string_view, std::string>("{build}", build_.name),
            {"{dir}", dir_.string()}}) {
        for (size_t at = word.find(key); at != word.npos; at = word.find(key, at + value.size())) {
          word.replace(at, key.size(), value);
        }
      }
    }
    const fs::path log = dir_ / "upload.log";
    NIBBLE_ASSIGN_OR_RETURN(ChildProcess uploading, ChildProcess::Start(command, log));
    while (!uploading.Ending().has_value()) {
      if (interrupts_->Wait()) return Fail("interrupted");
    }
    if (!uploading.Succeeded()) return Ended("it", uploading, log);
    say_(build_.name + ": uploaded");
    // With suites still to come, it is to be uploaded again.
    return faults_.empty() ? WriteFile(Uploaded(), "") : Status{};
  }

  const MatrixPlan& plan_;
  const MatrixBuild& build_;
  std::string nibble_;
  const Say& say_;
  Interrupts* interrupts_;
  fs::path dir_;
  std::vector<std::string> faults_;
};

}  // namespace

Result<MatrixOutcome> RunMatrix(const MatrixPlan& plan, const std::string& nibble, const Say& say) {
  Interrupts interrupts;
  std::vector<BuildRun> runs;
  for (const MatrixBuild& build : plan.builds) {
    runs.emplace_back(plan, build, nibble, say, &interrupts);
    NIBBLE_RETURN_IF_ERROR(runs.back().Claim());
  }
  MatrixOutcome outcome;
  for (BuildRun& run : runs) {
    run.Run();
    if (interrupts.taken()) return Fail("interrupted; the same command goes on");
    if (run.faults().empty()) outcome.complete.push_back(run.dir());
    outcome.faults.insert(outcome.faults.end(), run.faults().begin(), run.faults().end());
  }
  return outcome;
}

}  // namespace nibble::measure
