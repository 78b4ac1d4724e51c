"""What a plan says: analysis, explanation, what-if, timeline, reports, exports."""
