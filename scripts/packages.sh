# shellcheck shell=bash
# Sourced by scripts/demo and scripts/test: installs what is missing, by Debian 12's and Ubuntu 24.04's package names.

# Boost 1.81 or later: Debian 12 has it beside an older one, Ubuntu 24.04 has a later one.
boost=libboost1.81-dev
if grep -qs '^ID=ubuntu' /etc/os-release; then boost=libboost1.83-dev; fi

# What configuring and building nibble needs.
# shellcheck disable=SC2034  # used by those who source this
BUILD_PACKAGES=(g++ cmake ninja-build nlohmann-json3-dev libcli11-dev libfmt-dev libssl-dev libcurl4-openssl-dev "$boost")

# install_packages PACKAGE... : says what is missing, then installs just that; silent if nothing is.
install_packages() {
  local package missing=() as_root=()
  for package in "$@"; do
    dpkg-query -W -f '${db:Status-Status}\n' "$package" 2>/dev/null | grep -qx installed ||
      missing+=("$package")
  done
  [ ${#missing[@]} -gt 0 ] || return 0
  echo "installing with apt: ${missing[*]}"
  if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null || {
      echo "installing packages needs root: run as root, or install them first" >&2
      return 1
    }
    as_root=(sudo)
  fi
  "${as_root[@]}" apt-get update -qq
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
    apt-get install -qq -y --no-install-recommends "${missing[@]}" >/dev/null
}
