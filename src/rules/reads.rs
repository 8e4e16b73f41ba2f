//! Fields that an expression reads, so that only these are decoded.

use cel::{
    IdedExpr,
    common::ast::{CallExpr, ComprehensionExpr, EntryExpr, Expr, LiteralValue, operators},
};

use crate::object::{FieldUse, PathStep};

/// Part of a value that is read.
///
/// The existence and type of a value are always read, and a scalar is read as a whole. An expression does not show whether a
/// value is an object or a list. So a part has `members` and `keys` for an object, and `elements` for a list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Part {
    /// Set if the whole value is read, regardless of the other fields.
    pub(super) whole: bool,
    /// Members whose values are read at least in part: the name of each member, and the part that is read.
    pub(super) members: Vec<(Box<str>, Part)>,
    /// Set if the keys of all members are read.
    pub(super) keys: bool,
    /// Part that is read of each element. If set, the number of elements is read too.
    pub(super) elements: Option<Box<Part>>,
}

impl Part {
    /// Returns the part that is read of a member; `None` if at most the member's key is read. For a part that is not `whole`.
    pub(super) fn member(&self, key: &[u8]) -> Option<&Self> {
        self.members.iter().find(|(name, _)| name.as_bytes() == key).map(|(_, part)| part)
    }

    /// Collects the paths to the innermost parts, as member names. A path ends at a list, because list elements have no names.
    pub(super) fn collect_paths<'a>(&'a self, path: &mut Vec<&'a str>, paths: &mut Vec<Vec<&'a str>>) {
        if self.members.is_empty() && !path.is_empty() {
            paths.push(path.clone());
        }
        for (name, part) in &self.members {
            path.push(name);
            part.collect_paths(path, paths);
            path.pop();
        }
    }

    /// Collects the paths to the innermost parts, with their elements.
    fn collect_uses(&self, path: &mut Vec<PathStep>, uses: &mut Vec<FieldUse>) {
        if self.members.is_empty() && self.elements.is_none() {
            uses.push(FieldUse { path: path.clone(), compared: None });
        }
        for (name, part) in &self.members {
            // `"a" in x` looks for a key of a map or an element of a list, and only the latter is no field.
            if self.elements.is_some() && *part == Self::default() {
                continue;
            }
            path.push(PathStep::Member(name.clone()));
            part.collect_uses(path, uses);
            path.pop();
        }
        if let Some(elements) = &self.elements {
            path.push(PathStep::Each);
            elements.collect_uses(path, uses);
            path.pop();
        }
    }

    fn at(&mut self, place: &[Step<'_>]) -> &mut Self {
        let Some((step, rest)) = place.split_first() else { return self };
        let below = match *step {
            Step::Element => &mut **self.elements.get_or_insert_default(),
            Step::Member(name) => {
                let index = self.members.iter().position(|(member, _)| **member == *name).unwrap_or_else(|| {
                    self.members.push((name.into(), Self::default()));
                    self.members.len() - 1
                });
                &mut self.members[index].1
            }
        };
        below.at(rest)
    }
}

/// Fields that an expression reads.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Reads {
    /// Part of `object`.
    pub(super) object: Part,
    /// Part of `old`.
    pub(super) old: Part,
    /// Uses of the fields of all variables, sorted, each once.
    pub(super) uses: Vec<FieldUse>,
}

impl Reads {
    pub(super) fn of(expression: &IdedExpr) -> Self {
        let mut reader = Reader::default();
        reader.used(expression);
        let part = |name: &str| reader.variables.member(name.as_bytes()).cloned().unwrap_or_default();
        let (object, old) = (part("object"), part("old"));
        let mut uses = reader.compared;
        reader.variables.collect_uses(&mut Vec::new(), &mut uses);
        uses.sort_unstable();
        uses.dedup();
        Self { object, old, uses }
    }

    /// Returns the reads of an expression that reads both objects as a whole.
    #[cfg(test)]
    pub(super) fn all() -> Self {
        let all = || Part { whole: true, ..Part::default() };
        Self { object: all(), old: all(), uses: Vec::new() }
    }
}

/// Variables whose parts are followed.
const VARIABLES: [&str; 4] = ["object", "old", "type", "changed_by"];

#[derive(Clone, Copy, Debug)]
pub(super) enum Step<'a> {
    /// A member with this name.
    Member(&'a str),
    /// Any of the elements.
    Element,
}

impl Step<'_> {
    fn as_path_step(&self) -> PathStep {
        match *self {
            Self::Member(name) => PathStep::Member(name.into()),
            Self::Element => PathStep::Each,
        }
    }
}

/// Path from a variable to a value. The first step is the variable. `Step::Element` means any element, because the reads of one
/// element are recorded for all elements.
type Place<'a> = Vec<Step<'a>>;

/// Collector of the fields that an expression reads. It follows values from the variables to their uses. A value whose use is not
/// understood is read as a whole.
#[derive(Default)]
pub(super) struct Reader<'a> {
    /// Reads of all variables: each variable is a member of this part.
    variables: Part,
    /// Names of the variables of enclosing macros, with the locations of their values. `None` for a value that is not part of
    /// `object` or `old`, or whose reads are already recorded.
    bound: Vec<(&'a str, Option<Place<'a>>)>,
    /// Comparisons of parts with texts.
    compared: Vec<FieldUse>,
}

impl<'a> Reader<'a> {
    /// Records the reads of an expression. If its value is a part of `object` or `old`, the whole part is recorded.
    fn used(&mut self, expression: &'a IdedExpr) {
        if let Some(place) = self.place(expression) {
            self.variables.at(&place).whole = true;
            return;
        }
        match &expression.expr {
            Expr::Select(select) if select.test => match self.place(&select.operand) {
                Some(mut place) => {
                    place.push(Step::Member(&select.field));
                    self.variables.at(&place);
                }
                None => self.used(&select.operand),
            },
            Expr::Call(call) => self.call(expression, call),
            Expr::Comprehension(all) => self.macro_used(all),
            _ => children(expression).into_iter().for_each(|child| self.used(child)),
        }
    }

    fn call(&mut self, expression: &'a IdedExpr, call: &'a CallExpr) {
        self.compare(call);
        match (call.func_name.as_str(), call.target.as_deref(), call.args.as_slice()) {
            ("size", Some(measured), []) | ("size", None, [measured]) => {
                self.gone_over(measured);
            }
            (operators::IN, None, [sought, range]) => {
                self.used(sought);
                let Some(place) = self.place(range) else { return self.used(range) };
                let part = self.variables.at(&place);
                match text(sought) {
                    Some(key) => {
                        part.at(&[Step::Member(key)]);
                    }
                    None => part.keys = true,
                }
                part.at(&[Step::Element]).whole = true;
            }
            _ => children(expression).into_iter().for_each(|child| self.used(child)),
        }
    }

    /// Records a comparison of a part with a text, or with each text of a list.
    fn compare(&mut self, call: &'a CallExpr) {
        let (part, texts) = match (call.func_name.as_str(), call.args.as_slice()) {
            (operators::EQUALS | operators::NOT_EQUALS, [one, other]) => match (text(one), text(other)) {
                (None, Some(literal)) => (one, vec![literal]),
                (Some(literal), None) => (other, vec![literal]),
                _ => return,
            },
            (operators::IN, [sought, IdedExpr { expr: Expr::List(list), .. }]) => {
                (sought, list.elements.iter().filter_map(text).collect())
            }
            _ => return,
        };
        let Some(place) = self.place(part) else { return };
        let path = || place.iter().map(Step::as_path_step).collect();
        self.compared.extend(texts.into_iter().map(|text| FieldUse { path: path(), compared: Some(text.into()) }));
    }

    /// Records the reads of a macro.
    fn macro_used(&mut self, all: &'a ComprehensionExpr) {
        let element = if all.iter_var2.is_some() {
            self.used(&all.iter_range);
            None
        } else {
            self.gone_over(&all.iter_range)
        };
        self.used(&all.accu_init);
        let outside = self.bound.len();
        self.bound.extend(all.iter_var2.as_deref().map(|name| (name, None)));
        self.bound.extend([(all.accu_var.as_str(), None), (all.iter_var.as_str(), element)]);
        for inner in [&all.loop_cond, &all.loop_step, &all.result] {
            self.used(inner);
        }
        self.bound.truncate(outside);
    }

    /// Records the reads of `range`, whose value is iterated or counted: the keys of the value, and the number of its elements.
    /// Returns the location of the elements.
    fn gone_over(&mut self, range: &'a IdedExpr) -> Option<Place<'a>> {
        let Some(mut place) = self.place(range) else {
            self.used(range);
            return None;
        };
        self.variables.at(&place).keys = true;
        place.push(Step::Element);
        self.variables.at(&place);
        Some(place)
    }

    /// Returns the location of an expression's value; `None` if it is not a part of a variable.
    pub(super) fn place(&self, expression: &'a IdedExpr) -> Option<Place<'a>> {
        let (operand, step) = match &expression.expr {
            Expr::Ident(name) => return self.named(name),
            Expr::Select(select) if !select.test => (&*select.operand, Step::Member(&select.field)),
            Expr::Call(call) if call.func_name == operators::INDEX => {
                let [operand, index] = call.args.as_slice() else { return None };
                match &index.expr {
                    Expr::Literal(LiteralValue::Int(_) | LiteralValue::UInt(_)) => (operand, Step::Element),
                    _ => (operand, Step::Member(text(index)?)),
                }
            }
            _ => return None,
        };
        let mut place = self.place(operand)?;
        place.push(step);
        Some(place)
    }

    /// Returns the location of a name's value. Names bound by macros take precedence over variables, innermost macro first.
    fn named(&self, name: &'a str) -> Option<Place<'a>> {
        if let Some((_, bound)) = self.bound.iter().rev().find(|(bound, _)| *bound == name) {
            return bound.clone();
        }
        let name = name.trim_start_matches('.');
        VARIABLES.contains(&name).then(|| vec![Step::Member(name)])
    }
}

/// Returns the text of a string literal.
fn text(expression: &IdedExpr) -> Option<&str> {
    match &expression.expr {
        Expr::Literal(LiteralValue::String(text)) => Some(text.inner()),
        _ => None,
    }
}

/// Returns the direct subexpressions of an expression.
pub(super) fn children(expression: &IdedExpr) -> Vec<&IdedExpr> {
    match &expression.expr {
        // The check rejects every struct, so the values in a struct do not matter.
        Expr::Unspecified | Expr::Ident(_) | Expr::Literal(_) | Expr::Struct(_) => Vec::new(),
        Expr::Call(call) => call.target.iter().map(|target| &**target).chain(&call.args).collect(),
        Expr::Comprehension(all) => {
            vec![&all.iter_range, &all.accu_init, &all.loop_cond, &all.loop_step, &all.result]
        }
        Expr::List(list) => list.elements.iter().collect(),
        Expr::Select(select) => vec![&*select.operand],
        Expr::Map(map) => {
            let entries = map.entries.iter().filter_map(|entry| match &entry.expr {
                EntryExpr::MapEntry(entry) => Some([&entry.key, &entry.value]),
                EntryExpr::StructField(_) => None,
            });
            entries.flatten().collect()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Formats reads as `spec{replicas!, x}`. `!` means the whole value, `{*}` all keys, `[x]` x of each element.
    fn show(part: &Part) -> String {
        let members = part.members.iter().map(|(name, part)| format!("{name}{}", show(part)));
        let members: Vec<_> = part.keys.then(|| "*".to_owned()).into_iter().chain(members).collect();
        let members = if members.is_empty() { String::new() } else { format!("{{{}}}", members.join(", ")) };
        let elements = part.elements.as_ref().map(|element| format!("[{}]", show(element))).unwrap_or_default();
        format!("{}{members}{elements}", if part.whole { "!" } else { "" })
    }

    #[track_caller]
    fn check(expression: &str, object: &str, old: &str) {
        let program = cel::Env::stdlib().compile(expression).expect(expression);
        let reads = Reads::of(program.expression());
        assert_eq!((show(&reads.object).as_str(), show(&reads.old).as_str()), (object, old), "{expression}");
    }

    #[test]
    fn only_named_fields_are_read() {
        check("true", "", "");
        check("type == 'added'", "", "");
        check("object.metadata.namespace == 'a'", "{metadata{namespace!}}", "");
        check("object.spec.replicas > old.spec.replicas", "{spec{replicas!}}", "{spec{replicas!}}");
        check("object.metadata.labels['a/b'] == 'x'", "{metadata{labels{a/b!}}}", "");
        check("has(object.spec.paused)", "{spec{paused}}", "");
        check("has(object.spec) && object.spec.x == 1", "{spec{x!}}", "");
        check("object.spec[cluster] == 1", "{spec!}", "");
        check("object.metadata.name.startsWith('x')", "{metadata{name!}}", "");
        check(".object.kind == 'Pod'", "{kind!}", "");
    }

    #[test]
    fn whole_object_use_reads_everything() {
        check("object == old", "!", "!");
        check("[object].exists(o, o.a == 1)", "!", "");
        check("{'a': object.b}.a == 1 && object.?c.orValue(1) == 1", "!{b!}", "");
    }

    #[test]
    fn uses_are_paths_with_elements_and_comparisons() {
        let check = |expression: &str, expected: &[&str]| {
            let program = cel::Env::stdlib().compile(expression).expect(expression);
            let uses: Vec<_> = Reads::of(program.expression()).uses.iter().map(FieldUse::told).collect();
            assert_eq!(uses, expected, "{expression}");
        };
        check("type == 'added' && 'b' != type", &["type", "type=added", "type=b"]);
        check("type in ['a', 'b']", &["type", "type=a", "type=b"]);
        check("changed_by.manager == 'x'", &["changed_by.manager", "changed_by.manager=x"]);
        check("object.a.exists(c, c.b == 'x' && has(c.d))", &["object.a.*.b", "object.a.*.b=x", "object.a.*.d"]);
        check("has(object.a.b) && old.c > 1", &["object.a.b", "old.c"]);
        check("'a' in object.b && object.c[0].d == 1", &["object.b.*", "object.c.*.d"]);
    }

    #[test]
    fn iteration_reads_list_elements_and_map_keys() {
        check("object.a.exists(c, c.image == 'x')", "{a{*}[{image!}]}", "");
        check("object.a.all(c, has(c.image))", "{a{*}[{image}]}", "");
        check("object.a.exists_one(c, c.a.b == 1 || c['d'] == 1)", "{a{*}[{a{b!}, d!}]}", "");
        check("object.a.map(c, c.image) != old.a.map(c, c.image)", "{a{*}[{image!}]}", "{a{*}[{image!}]}");
        check("object.a.map(c, c.a == 1, c.b) == []", "{a{*}[{a!, b!}]}", "");
        check("object.a.exists(c, c.ports.exists(p, p.name == 'http'))", "{a{*}[{ports{*}[{name!}]}]}", "");
        check("object.a.exists(c, old.a.all(d, d.x != c.x))", "{a{*}[{x!}]}", "{a{*}[{x!}]}");
        check("object.a.exists(c, true)", "{a{*}[]}", "");
        check("object.exists(k, k == 'a')", "{*}[!]", "");
        check("object.a[0].image == 'x' || object.a[1u].b == 1", "{a[{image!, b!}]}", "");
        check("object.a[0] == object.b[0.0]", "{a[!], b!}", "");
        check("size(object.a) > object.b.size()", "{a{*}[], b{*}[]}", "");
        check("'a' in object.b && object.c in old.d", "{b{a}[!], c!}", "{d{*}[!]}");
    }

    #[test]
    fn filtered_list_is_read_as_a_whole() {
        check("object.a.filter(c, c.x == 1).size() > 0", "{a{*}[!{x!}]}", "");
        check("object.a.filter(c, c.x == 1)[0].y == 1", "{a{*}[!{x!}]}", "");
    }

    #[test]
    fn escaping_variable_is_read_as_a_whole() {
        for escape in
            ["c == 'x'", "c in [1]", "1 in [c]", "string(c) == 'x'", "{'a': c}.a.b == 1", "[c].exists(d, d.x == 1)"]
        {
            check(&format!("object.a.exists(c, {escape})"), "{a{*}[!]}", "");
        }
        check("object.a.map(c, c).exists(d, d.x == 1)", "{a{*}[!]}", "");
        check("object.a.map(c, {'x': c})[0].x.y == 1", "{a{*}[!]}", "");
        check("object.a.exists(c, (c.x == 1 ? c : c.y).z == 1)", "{a{*}[!{x!, y!}]}", "");
        check("object.a.exists(c, object.b[c.x].y == 1)", "{a{*}[{x!}], b!}", "");
    }

    #[test]
    fn name_refers_to_innermost_macro_variable() {
        check("object.a.exists(c, old.b.exists(c, c.x == 1) && c.y == 1)", "{a{*}[{y!}]}", "{b{*}[{x!}]}");
        check("object.a.exists(object, object.x == 1) && object.y == 1", "{a{*}[{x!}], y!}", "");
        check("old.a.exists(object, .object.x == object.y)", "{x!}", "{a{*}[{y!}]}");
        check("object.a.exists(c, [1].exists(c, c.x == 1))", "{a{*}[]}", "");
        check("object.a.exists(c, c.b.exists(c, c.x == 1))", "{a{*}[{b{*}[{x!}]}]}", "");
        check("object.a.exists(c, object.?b.optMap(c, c.x == 1).orValue(true))", "!{a{*}[]}", "");
    }
}
