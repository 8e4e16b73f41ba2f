package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"runtime"
	"slices"
	"strconv"
	"sync"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/scheme"
)

const podsPath = "/api/v1/pods"

// recordedWatch requests all pods, and then their changes.
const recordedWatch = podsPath + "?watch=true&allowWatchBookmarks=true&sendInitialEvents=true" +
	"&resourceVersionMatch=NotOlderThan&timeoutSeconds=3600"

// recording is one watch, ready to be sent again.
type recording struct {
	// items are the pods of the initial list in JSON; version is the version of the list.
	items   [][]byte
	version uint64
	// versions are the versions of the events, in ascending order.
	versions []uint64
	json     frames
	protobuf frames
}

// frames are the events of a watch in one encoding, concatenated.
type frames struct {
	// initial holds the initial events and the bookmark that ends them.
	initial []byte
	events  []byte
	// ends are the offsets in events at which an event ends.
	ends []int
}

// from returns the events after the first skipped ones.
func (f *frames) from(skipped int) []byte {
	if skipped == 0 {
		return f.events
	}
	return f.events[f.ends[skipped-1]:]
}

// record reads a watch up to the given number of events. It calls loaded once it has the initial events.
func record(upstream string, events int, loaded func()) (*recording, error) {
	response, err := http.Get(upstream + recordedWatch)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("the recorded watch answered %s", response.Status)
	}
	reader := bufio.NewReaderSize(response.Body, 1<<20)
	var lines [][]byte
	// Only bookmarks are examined here: examining all events would be too slow for the server.
	isBookmark := func(line []byte) bool { return bytes.HasPrefix(line, []byte(`{"type":"BOOKMARK"`)) }
	initial := 0
	for wanted := -1; wanted < 0 || len(lines) < wanted; {
		line, err := reader.ReadBytes('\n')
		if err != nil {
			return nil, fmt.Errorf("the recorded watch ended after %d lines: %w", len(lines), err)
		}
		if !isBookmark(line) {
			lines = append(lines, line)
		} else if wanted < 0 {
			lines = append(lines, line)
			initial = len(lines)
			wanted = initial + events
			loaded()
		}
	}
	return encode(lines, initial)
}

// encode converts the lines of a watch to the served form; the first `initial` lines are the initial list and its bookmark.
func encode(lines [][]byte, initial int) (*recording, error) {
	encoded := make([]encodedEvent, len(lines))
	var group sync.WaitGroup
	failures := make(chan error, runtime.NumCPU())
	for worker := range runtime.NumCPU() {
		group.Go(func() {
			for at := worker; at < len(lines); at += runtime.NumCPU() {
				var err error
				if encoded[at], err = encodeEvent(lines[at]); err != nil {
					failures <- fmt.Errorf("line %d of the recorded watch: %w", at, err)
					return
				}
			}
		})
	}
	group.Wait()
	select {
	case err := <-failures:
		return nil, err
	default:
	}
	made := &recording{version: encoded[initial-1].version}
	frames := make([][]byte, len(lines))
	for at := range encoded {
		frames[at] = encoded[at].protobuf
	}
	made.json.fill(lines, initial)
	made.protobuf.fill(frames, initial)
	for _, line := range lines[:initial-1] {
		made.items = append(made.items, asItem(line))
	}
	for _, event := range encoded[initial:] {
		made.versions = append(made.versions, event.version)
	}
	return made, nil
}

// fill concatenates frames, in no more memory than they need.
func (f *frames) fill(all [][]byte, initial int) {
	f.initial = slices.Concat(all[:initial]...)
	f.events = slices.Concat(all[initial:]...)
	end := 0
	for _, frame := range all[initial:] {
		end += len(frame)
		f.ends = append(f.ends, end)
	}
}

type encodedEvent struct {
	version  uint64
	protobuf []byte
}

func encodeEvent(line []byte) (encodedEvent, error) {
	kind, object, err := split(line)
	if err != nil {
		return encodedEvent{}, err
	}
	var pod corev1.Pod
	if err := json.Unmarshal(object, &pod); err != nil {
		return encodedEvent{}, err
	}
	version, err := strconv.ParseUint(pod.ResourceVersion, 10, 64)
	if err != nil {
		return encodedEvent{}, err
	}
	frame, err := protobufFrame(kind, &pod)
	return encodedEvent{version, frame}, err
}

// split splits a line of a watch: {"type":KIND,"object":OBJECT}.
func split(line []byte) (kind string, object []byte, err error) {
	rest, isEvent := bytes.CutPrefix(line, []byte(`{"type":"`))
	before, object, hasObject := bytes.Cut(rest, []byte(`","object":`))
	object, isWhole := bytes.CutSuffix(object, []byte("}\n"))
	if !isEvent || !hasObject || !isWhole {
		return "", nil, fmt.Errorf("not an event: %.60q", line)
	}
	return string(before), object, nil
}

// asItem returns the object of an event in the form of a list item, without kind and apiVersion.
func asItem(line []byte) []byte {
	_, object, _ := split(line)
	return bytes.Replace(object, []byte(`"kind":"Pod","apiVersion":"v1",`), nil, 1)
}

// protobufFrame encodes an event like the API server: its length, then a raw WatchEvent with the object in its envelope.
func protobufFrame(kind string, pod *corev1.Pod) ([]byte, error) {
	codecs := scheme.Codecs.WithoutConversion()
	info, ok := kruntime.SerializerInfoForMediaType(codecs.SupportedMediaTypes(), kruntime.ContentTypeProtobuf)
	if !ok {
		return nil, fmt.Errorf("client-go knows no protobuf")
	}
	object, err := kruntime.Encode(codecs.EncoderForVersion(info.Serializer, corev1.SchemeGroupVersion), pod)
	if err != nil {
		return nil, err
	}
	var frame bytes.Buffer
	event := &metav1.WatchEvent{Type: kind, Object: kruntime.RawExtension{Raw: object}}
	var writer io.Writer = info.StreamSerializer.Framer.NewFrameWriter(&frame)
	err = info.StreamSerializer.Serializer.Encode(event, writer)
	return frame.Bytes(), err
}
