//! What stands in a document between `<!-- measured: COMMAND -->` and `<!-- /measured -->`.

const BEGIN: &str = "<!-- measured: ";
const BEGIN_END: &str = " -->\n";
const END: &str = "<!-- /measured -->";

/// Returns the commands of the marks, in their order.
///
/// # Errors
/// Says which mark has no end.
pub(crate) fn commands(document: &str) -> Result<Vec<&str>, String> {
    let mut commands = Vec::new();
    for part in document.split(BEGIN).skip(1) {
        let (command, rest) = part.split_once(BEGIN_END).ok_or("a mark `<!-- measured: …` does not end with ` -->`")?;
        if !rest.contains(END) {
            return Err(format!("`{BEGIN}{command} -->` is not followed by `{END}`"));
        }
        commands.push(command);
    }
    Ok(commands)
}

/// Puts `text` between the marks of a command; `None` where there are none.
pub(crate) fn replace(document: &str, command: &str, text: &str) -> Option<String> {
    let begin = format!("{BEGIN}{command}{BEGIN_END}");
    let (before, rest) = document.split_once(&begin)?;
    let (_, after) = rest.split_once(END)?;
    Some(format!("{before}{begin}{}\n{END}{after}", text.trim_end()))
}

/// Returns what the document shows of what a program printed: its tables, or all of it as it is where there are none. `None`
/// where it printed nothing.
pub(crate) fn shown(printed: &str) -> Option<String> {
    let tables = tables(printed);
    if !tables.is_empty() {
        return Some(tables);
    }
    let lines: Vec<_> = printed.trim().lines().map(str::trim_end).collect();
    (lines != [""] && !lines.is_empty()).then(|| format!("```text\n{}\n```\n", lines.join("\n")))
}

/// Returns the tables of what a program printed, an empty line between two, their numbers grouped by thousands.
fn tables(printed: &str) -> String {
    let mut tables = String::new();
    let mut is_within = false;
    for line in printed.lines() {
        let is_table = line.starts_with('|');
        if is_table {
            if !is_within && !tables.is_empty() {
                tables.push('\n');
            }
            let cells: Vec<_> = line.split('|').map(grouped).collect();
            tables.push_str(&cells.join("|"));
            tables.push('\n');
        }
        is_within = is_table;
    }
    tables
}

/// Groups the thousands of a cell that holds numbers and nothing else.
fn grouped(cell: &str) -> String {
    if cell.chars().any(|c| !c.is_ascii_digit() && !" .→–%".contains(c)) {
        return cell.to_owned();
    }
    let words = cell.split(' ').map(|word| {
        let (whole, rest) = word.find('.').map_or((word, ""), |at| word.split_at(at));
        let mut grouped = String::new();
        for (at, digit) in whole.chars().enumerate() {
            let left = whole.chars().count() - at;
            if at > 0 && left % 3 == 0 && digit.is_ascii_digit() {
                grouped.push(',');
            }
            grouped.push(digit);
        }
        grouped + rest
    });
    words.collect::<Vec<_>>().join(" ")
}
