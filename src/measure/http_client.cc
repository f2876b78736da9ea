#include "measure/http_client.h"

#include <curl/curl.h>

#include <algorithm>

#include "base/check.h"

namespace nibble::measure {
namespace {

int StatusOf(CURL* curl) {
  int64_t status = 0;  // libcurl's long
  ::curl_easy_getinfo(curl, CURLINFO_RESPONSE_CODE, &status);
  return static_cast<int>(status);
}

struct Transfer {
  const HttpRequest* request = nullptr;
  HttpResponse response;
  CURL* curl = nullptr;
};

size_t TakePiece(char* data, size_t, size_t n_bytes, void* user) {
  auto& transfer = *static_cast<Transfer*>(user);
  transfer.response.status = StatusOf(transfer.curl);
  const std::string_view piece(data, n_bytes);
  if (transfer.response.status == 200 && transfer.request->on_piece) {
    return transfer.request->on_piece(piece) ? n_bytes : CURL_WRITEFUNC_ERROR;
  }
  transfer.response.body += piece;
  return n_bytes;
}

struct ListDeleter {
  void operator()(curl_slist* list) const { ::curl_slist_free_all(list); }
};
using HeaderList = std::unique_ptr<curl_slist, ListDeleter>;

void AddHeader(const std::string& header, HeaderList* headers) {
  headers->reset(::curl_slist_append(headers->release(), header.c_str()));
}

}  // namespace

struct HttpClient::Impl {
  CURL* curl = nullptr;
};

HttpClient::HttpClient() : impl_(std::make_unique<Impl>()) {
  static const CURLcode kReady = ::curl_global_init(CURL_GLOBAL_DEFAULT);
  impl_->curl = ::curl_easy_init();
  CHECK(kReady == CURLE_OK && impl_->curl != nullptr);
}

HttpClient::~HttpClient() { ::curl_easy_cleanup(impl_->curl); }

Result<HttpResponse> HttpClient::Send(const HttpRequest& request) {
  CURL* curl = impl_->curl;
  ::curl_easy_reset(curl);
  Transfer transfer{.request = &request, .response = {}, .curl = curl};
  HeaderList headers;
  AddHeader("Content-Type: application/json", &headers);
  AddHeader("Expect:", &headers);  // no pause before large bodies
  if (!request.bearer_token.empty()) {
    AddHeader("Authorization: Bearer " + request.bearer_token, &headers);
  }
  char fault[CURL_ERROR_SIZE] = "";
  ::curl_easy_setopt(curl, CURLOPT_URL, request.url.c_str());
  ::curl_easy_setopt(curl, CURLOPT_HTTPHEADER, headers.get());
  ::curl_easy_setopt(curl, CURLOPT_NOSIGNAL, 1L);
  ::curl_easy_setopt(curl, CURLOPT_ERRORBUFFER, fault);
  ::curl_easy_setopt(curl, CURLOPT_TIMEOUT_MS, static_cast<long>(request.timeout_s * 1000));
  ::curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, &TakePiece);
  ::curl_easy_setopt(curl, CURLOPT_WRITEDATA, &transfer);
  if (request.body.has_value()) {
    ::curl_easy_setopt(curl, CURLOPT_POSTFIELDS, request.body->c_str());
    ::curl_easy_setopt(curl, CURLOPT_POSTFIELDSIZE_LARGE,
                       static_cast<curl_off_t>(request.body->size()));
  }
  const CURLcode code = ::curl_easy_perform(curl);
  ::curl_easy_setopt(curl, CURLOPT_ERRORBUFFER, nullptr);
  if (code != CURLE_OK) {
    return Fail("{}: {}", request.url, fault[0] != '\0' ? fault : ::curl_easy_strerror(code));
  }
  transfer.response.status = StatusOf(curl);
  curl_off_t retry_after_s = 0;
  ::curl_easy_getinfo(curl, CURLINFO_RETRY_AFTER, &retry_after_s);
  transfer.response.retry_after_s = static_cast<double>(retry_after_s);
  return std::move(transfer.response);
}

}  // namespace nibble::measure
