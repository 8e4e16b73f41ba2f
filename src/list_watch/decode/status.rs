//! `Status` objects: the server's error answers.

use std::time::Duration;

use serde_json::Value;

use crate::list_watch::Status;

/// Number of bytes of an error body that become the message, if the body is not a `Status`.
const MESSAGE_BYTES_MAX: usize = 512;

/// Decodes a `Status`; returns `None` for any other object.
pub(super) fn of_object(json: &[u8]) -> Option<Status> {
    let status: Value = serde_json::from_slice(json).ok().filter(|status: &Value| status["kind"] == "Status")?;
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let says_too_large = |value: &Value| text(value).starts_with("Too large resource version");
    let is_too_large =
        |cause: &Value| cause["reason"] == "ResourceVersionTooLarge" || says_too_large(&cause["message"]);
    let details = &status["details"];
    Some(Status {
        code: status["code"].as_u64().and_then(|code| u16::try_from(code).ok()).unwrap_or(0),
        reason: text(&status["reason"]),
        message: text(&status["message"]),
        too_large: says_too_large(&status["message"])
            || details["causes"].as_array().into_iter().flatten().any(is_too_large),
        retry_after: details["retryAfterSeconds"].as_u64().filter(|s| *s > 0).map(Duration::from_secs),
    })
}

/// Decodes an HTTP error: the `Status` in its body, or else its code and the beginning of the body.
///
/// `retry_after` is the value of the header. A number of seconds in the header takes precedence over the delay in the body (T-1).
pub(crate) fn decode_status(code: u16, retry_after: Option<&str>, body: &[u8]) -> Status {
    let mut status = of_object(body).unwrap_or_else(|| Status { message: beginning(body), ..Status::default() });
    if status.code == 0 {
        status.code = code;
    }
    if let Some(seconds) = retry_after.and_then(|text| text.trim().parse().ok()) {
        status.retry_after = Some(Duration::from_secs(seconds));
    }
    status
}

fn beginning(body: &[u8]) -> String {
    let text = String::from_utf8_lossy(&body[..body.len().min(MESSAGE_BYTES_MAX)]);
    let mut line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    if body.len() > MESSAGE_BYTES_MAX {
        line.push('…');
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rule: A-6.
    #[test]
    fn too_large_version_is_recognized_in_all_forms() {
        for body in [
            r#"{"kind":"Status","code":504,"reason":"Timeout","message":"x","details":{"causes":[{"reason":"ResourceVersionTooLarge"}],"retryAfterSeconds":1}}"#,
            r#"{"kind":"Status","code":504,"message":"Too large resource version: 5, current: 3"}"#,
            r#"{"kind":"Status","code":504,"details":{"causes":[{"message":"Too large resource version"}]}}"#,
        ] {
            let status = decode_status(504, None, body.as_bytes());
            assert!(status.too_large, "{body}");
            assert_eq!(status.code, 504);
        }
        assert!(!decode_status(504, None, br#"{"kind":"Status","message":"Timeout"}"#).too_large);
    }

    /// Rule: T-1.
    #[test]
    fn retry_delay_comes_from_header_or_body() {
        let body = br#"{"kind":"Status","code":429,"details":{"retryAfterSeconds":7}}"#;
        let seconds = |header| decode_status(429, header, body).retry_after.map(|after| after.as_secs());
        assert_eq!(seconds(None), Some(7));
        assert_eq!(seconds(Some("3")), Some(3));
        assert_eq!(seconds(Some("Wed, 21 Oct 2026 07:28:00 GMT")), Some(7));
        assert_eq!(seconds(Some("-1")), Some(7));
        assert_eq!(decode_status(503, None, b"").retry_after, None);
    }

    #[test]
    fn non_status_error_keeps_code_and_text() {
        let status = decode_status(502, None, b"<html>\n  Bad\xff Gateway</html>");
        assert_eq!((status.code, &*status.message), (502, "<html> Bad\u{fffd} Gateway</html>"));
        assert_eq!(decode_status(500, None, br#"{"kind":"Pod","code":1}"#).code, 500);
        assert!(decode_status(410, None, b"gone").is_expired());
        assert!(decode_status(500, None, &[b'x'; 10_000]).message.len() < 600);
        assert_eq!(decode_status(500, None, br#"{"kind":"Status","code":99999999}"#).code, 500);
    }
}
