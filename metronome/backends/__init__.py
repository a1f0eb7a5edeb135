"""Where frames go: a real engine or a stand-in that costs nothing."""
