#include "server/service.h"

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <utility>

#include "base/json.h"
#include "server/embedded.h"

namespace nibble::server {
namespace {

HttpReply Plain(const Json& json) {
  return {.response = {.body = json.dump(-1, ' ', false, Json::error_handler_t::replace)}};
}

HttpReply Refused(const ApiError& error) { return {.response = ErrorResponse(error)}; }

// Takes the same time wherever the first difference is.
bool EqualSecrets(std::string_view a, std::string_view b) {
  if (a.size() != b.size()) return false;
  unsigned difference = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    difference |= static_cast<uint8_t>(a[i]) ^ static_cast<uint8_t>(b[i]);
  }
  return difference == 0;
}

// application/json, also with parameters.
bool IsJson(std::string_view content_type) {
  std::string type(content_type.substr(0, content_type.find(';')));
  while (type.ends_with(' ')) type.pop_back();
  for (char& c : type) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return type == "application/json";
}

// Generates one token; waits for it.
Status Warm(const ServedModel& model) {
  engine::Request request;
  request.prompt_ids = {model.tokenizer.bos_id()};
  request.max_tokens = 1;
  auto queue = std::make_shared<TokenQueue>(1);
  std::mutex mutex;
  std::condition_variable woken;
  bool is_awake = false;
  queue->SetWake([&] {
    const std::lock_guard lock(mutex);
    is_awake = true;
    woken.notify_one();
  });
  const bool is_taken = model.engine->Submit({std::move(request)}, queue).has_value();
  {
    std::unique_lock lock(mutex);
    woken.wait(lock, [&] { return is_awake || !is_taken; });
  }
  queue->SetWake(nullptr);
  if (queue->Take().empty()) return Fail("{}: {}", model.names[0], queue->failure());
  return {};
}

}  // namespace

Service::Service(ServiceOptions options) : options_(std::move(options)), log_(options_.log) {}
Service::~Service() = default;

Status Service::Start(ServedModel model) {
  NIBBLE_RETURN_IF_ERROR(Warm(model));
  model_ = std::make_unique<ServedModel>(std::move(model));
  is_ready_ = true;
  return {};
}

const std::vector<Service::Route>& Service::Routes() {
  static const std::vector<Route> kRoutes = {
      {"GET", "/", &Service::Page, true},
      {"GET", "/health", &Service::Health, true},
      {"GET", "/ready", &Service::Health, true},
      {"GET", "/ping", &Service::Health, true},
      {"GET", "/version", &Service::Version, true},
      {"GET", "/metrics", &Service::MetricsText, true},
      {"GET", "/openapi.json", &Service::OpenApi, true},
      {"GET", "/v1/models", &Service::Models},
      {"GET", "/v1/models/", &Service::Model},
      {"POST", "/v1/chat/completions", &Service::Chat},
      {"POST", "/v1/completions", &Service::Completions},
      {"POST", "/invocations", &Service::Invocations},
      {"POST", "/tokenize", &Service::Tokenize},
      {"POST", "/detokenize", &Service::Detokenize},
  };
  return kRoutes;
}

HttpReply Service::Handle(const HttpRequest& request) {
  HttpReply reply = Dispatch(request);
  if (reply.exchange == nullptr) {
    metrics_.CountResponse(reply.response.status);
    log_.Write({.client = request.client,
                .method = request.method,
                .path = request.path,
                .status = reply.response.status});
  }
  AddCors(request, &reply.response);
  return reply;
}

HttpReply Service::Dispatch(const HttpRequest& request) {
  if (request.method == "OPTIONS" && !options_.cors_origin.empty()) {
    return {.response = {.status = 204}};
  }
  const bool is_get = request.method == "GET" || request.method == "HEAD";
  std::string allowed;  // methods, if the path is known
  for (const Route& route : Routes()) {
    const bool is_folder = route.path.size() > 1 && route.path.ends_with('/');
    if (is_folder ? !request.path.starts_with(route.path) : request.path != route.path) continue;
    allowed += route.method == "GET" ? "GET, HEAD" : route.method;
    if (route.method != (is_get ? "GET" : request.method)) continue;
    if (!route.is_open && !MayCall(request)) {
      return Refused({.status = 401,
                      .message = "Incorrect API key provided: expected Authorization: Bearer KEY",
                      .code = "invalid_api_key"});
    }
    if (route.method == "POST" && !IsJson(request.content_type)) {
      return Refused({.status = 415,
                      .message = "Content-Type: expected application/json",
                      .code = "unsupported_media_type"});
    }
    if (!route.is_open && !Unavailable().empty()) {
      return Refused(
          {.status = 503, .message = Unavailable(), .code = "unavailable", .retry_after_s = 5});
    }
    return (this->*route.endpoint)(request);
  }
  if (allowed.empty()) {
    return Refused(
        {.status = 404,
         .message = fmt::format("Unknown request URL: {} {}", request.method, request.path),
         .code = "unknown_url"});
  }
  HttpReply reply =
      Refused({.status = 405,
               .message = fmt::format("{} is not allowed for {}", request.method, request.path),
               .code = "method_not_allowed"});
  reply.response.headers.emplace_back("Allow", allowed);
  return reply;
}

bool Service::MayCall(const HttpRequest& request) const {
  if (options_.api_keys.empty()) return true;
  constexpr std::string_view kScheme = "Bearer ";
  if (!request.authorization.starts_with(kScheme)) return false;
  const std::string_view given = std::string_view(request.authorization).substr(kScheme.size());
  bool is_one = false;
  for (const std::string& key : options_.api_keys) is_one |= EqualSecrets(given, key);
  return is_one;
}

void Service::AddCors(const HttpRequest& request, HttpResponse* response) const {
  const bool allows = options_.cors_origin == "*" || options_.cors_origin == request.origin;
  if (options_.cors_origin.empty() || request.origin.empty() || !allows) return;
  response->headers.emplace_back("Access-Control-Allow-Origin", options_.cors_origin);
  response->headers.emplace_back("Access-Control-Allow-Headers", "Authorization, Content-Type");
  response->headers.emplace_back("Access-Control-Allow-Methods", "GET, POST, OPTIONS");
}

std::string Service::Unavailable() const {
  if (draining_) return "The server is shutting down";
  if (!is_ready_) return "The model is loading";
  return model_->engine->failure();
}

HttpReply Service::Health(const HttpRequest&) {
  const std::string why = Unavailable();
  if (!why.empty()) return Refused({.status = 503, .message = why, .code = "unavailable"});
  return Plain({{"status", "ok"}});
}

namespace {

Json ModelJson(const ServedModel& model, const std::string& name) {
  Json weights = Json::array();
  for (const WeightPart& part : model.weights) {
    weights.push_back({{"part", part.part}, {"dtype", part.dtype}, {"bytes", part.n_bytes}});
  }
  return {{"id", name},
          {"object", "model"},
          {"created", model.created_s},
          {"owned_by", "nibble"},
          {"root", model.names[0]},
          {"max_model_len", model.context_tokens},
          {"weights", std::move(weights)}};
}

}  // namespace

HttpReply Service::Models(const HttpRequest&) {
  Json models = Json::array();
  for (const std::string& name : model_->names) models.push_back(ModelJson(*model_, name));
  return Plain({{"object", "list"}, {"data", std::move(models)}});
}

HttpReply Service::Model(const HttpRequest& request) {
  const std::string name = request.path.substr(std::string_view("/v1/models/").size());
  for (const std::string& known : model_->names) {
    if (known == name) return Plain(ModelJson(*model_, name));
  }
  return Refused({.status = 404,
                  .message = fmt::format("The model {} does not exist", QuoteForMessage(name)),
                  .param = "model",
                  .code = "model_not_found"});
}

HttpReply Service::Chat(const HttpRequest& request) {
  return Generate(request, ParseChatRequest(request.body, *model_));
}

HttpReply Service::Completions(const HttpRequest& request) {
  return Generate(request, ParseCompletionRequest(request.body, *model_));
}

HttpReply Service::Invocations(const HttpRequest& request) {
  return Generate(request, ParseInvocation(request.body, *model_));
}

HttpReply Service::Generate(const HttpRequest& request, ApiResult<GenerationRequest> parsed) {
  if (!parsed.has_value()) return Refused(parsed.error());
  const std::vector<std::string> ignored = parsed->ignored;
  auto generation =
      Generation::Start(*std::move(parsed),
                        {.model = *model_,
                         .metrics = metrics_,
                         .log = log_,
                         .max_buffered_tokens = options_.max_buffered_tokens},
                        {.client = request.client, .method = request.method, .path = request.path});
  if (!generation.has_value()) return Refused(generation.error());
  HttpReply reply{.is_stream = (*generation)->is_stream()};
  reply.response.headers.emplace_back("X-Request-Id", (*generation)->id());
  if (!ignored.empty()) {
    reply.response.headers.emplace_back("X-Nibble-Ignored",
                                        fmt::format("{}", fmt::join(ignored, ", ")));
  }
  if (reply.is_stream) {
    reply.response.content_type = "text/event-stream";
    reply.response.headers.emplace_back("Cache-Control", "no-cache");
    reply.response.headers.emplace_back("X-Accel-Buffering", "no");  // nginx is to pass it on
  }
  reply.exchange = *std::move(generation);
  return reply;
}

HttpReply Service::Tokenize(const HttpRequest& request) {
  const auto prompt = ParseTokenize(request.body, *model_);
  if (!prompt.has_value()) return Refused(prompt.error());
  return Plain({{"count", prompt->ids.size()},
                {"max_model_len", model_->context_tokens},
                {"tokens", prompt->ids}});
}

HttpReply Service::Detokenize(const HttpRequest& request) {
  const auto ids = ParseDetokenize(request.body, *model_);
  if (!ids.has_value()) return Refused(ids.error());
  const Result<std::string> text = model_->tokenizer.Decode(*ids, /*skip_special=*/false);
  if (!text.has_value()) return Refused(BadField("tokens", "tokens: {}", text.error().message));
  return Plain({{"prompt", *text}});
}

HttpReply Service::Version(const HttpRequest&) { return Plain({{"version", NIBBLE_VERSION}}); }

HttpReply Service::MetricsText(const HttpRequest&) {
  return {.response = {.content_type = "text/plain; version=0.0.4; charset=utf-8",
                       .body = metrics_.Text(is_ready_ ? model_.get() : nullptr)}};
}

HttpReply Service::OpenApi(const HttpRequest&) {
  return {.response = {.body = std::string(kOpenApi)}};
}

HttpReply Service::Page(const HttpRequest&) {
  HttpReply reply{
      .response = {.content_type = "text/html; charset=utf-8", .body = std::string(kPage)}};
  reply.response.headers.emplace_back(
      "Content-Security-Policy",
      "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; "
      "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; "
      "frame-ancestors 'none'");
  return reply;
}

}  // namespace nibble::server
