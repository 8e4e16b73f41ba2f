use super::cells::human_duration;

#[test]
fn durations_are_formatted_like_kubectl() {
    const DAY: i64 = 86_400;
    for (seconds, expected) in [
        (-2, "<invalid>"),
        (-1, "0s"),
        (0, "0s"),
        (119, "119s"),
        (120, "2m"),
        (150, "2m30s"),
        (600, "10m"),
        (179 * 60, "179m"),
        (3 * 3600, "3h"),
        (3 * 3600 + 60, "3h1m"),
        (8 * 3600 + 60, "8h"),
        (47 * 3600, "47h"),
        (2 * DAY, "2d"),
        (2 * DAY + 3600, "2d1h"),
        (8 * DAY + 3600, "8d"),
        (729 * DAY, "729d"),
        (730 * DAY, "2y"),
        (731 * DAY, "2y1d"),
        (2920 * DAY, "8y"),
    ] {
        assert_eq!(human_duration(seconds), expected, "{seconds}");
    }
}
