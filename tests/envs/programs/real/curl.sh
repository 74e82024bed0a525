# A program of three questions, each of which holds all that was said before.
set -eu
messages='{"role": "user", "content": "What is 3 times 4?"}'
for question in "And times 5?" "Say it again." ""; do
    said=$(curl --silent --show-error --fail-with-body "$OPENAI_BASE_URL/chat/completions" \
        --header "Authorization: Bearer $OPENAI_API_KEY" --header "Content-Type: application/json" \
        --data "{\"model\": \"policy\", \"messages\": [$messages]}" |
        sed 's/.*"content":"\([^"]*\)".*/\1/')
    messages="$messages, {\"role\": \"assistant\", \"content\": \"$said\"}"
    messages="$messages, {\"role\": \"user\", \"content\": \"$question\"}"
done
echo "$said"
