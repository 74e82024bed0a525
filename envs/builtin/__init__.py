"""The environments that Gymnast brings along, each as a user could have written it."""
