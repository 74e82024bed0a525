# The coding agent pi, told of the endpoint as its documentation says.
set -eu
mkdir -p "$HOME/.pi/agent"
cat >"$HOME/.pi/agent/models.json" <<END
{"providers": {"gymnast": {"baseUrl": "$OPENAI_BASE_URL", "api": "openai-completions",
 "apiKey": "$OPENAI_API_KEY", "models": [{"id": "policy"}]}}}
END
exec pi --offline --no-session --print --provider gymnast --model policy \
    "Use the shell to find 3 times 4, times 5."
