// One line for each request that was answered, as text or JSON, without what was said unless asked.
// Thread-safe. Tested by service_test.cc.
#pragma once

#include <string>

#include "server/line_writer.h"
#include "server/metrics.h"

namespace nibble::server {

struct LogEntry {
  std::string client;
  std::string method;
  std::string path;
  int status = 0;
  std::string id = {};        // of the answer; "": no tokens were asked for
  RequestRecord record = {};  // if there is an id
  std::string prompt = {};
  std::string error = {};
};

struct LogOptions {
  LineWriter* lines = nullptr;  // null: no log
  bool json = false;
  bool shows_prompts = false;
};

class RequestLog {
 public:
  explicit RequestLog(LogOptions options) : options_(options) {}
  void Write(const LogEntry& entry) const;

 private:
  const LogOptions options_;
};

}  // namespace nibble::server
