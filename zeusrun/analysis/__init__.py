"""What a history says, for people: baselines, shifts of cost, savings."""
