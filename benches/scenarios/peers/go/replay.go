package main

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"runtime/debug"
	"sort"
	"strconv"
	"strings"
	"sync"
)

// chunkBytes is the maximum size of one write.
const chunkBytes = 256 << 10

const (
	mediaJSON          = "application/json"
	mediaProtobufWatch = "application/vnd.kubernetes.protobuf;stream=watch"
)

// server serves pods from a recording, and forwards all other requests to upstream.
type server struct {
	pods     *recording
	upstream http.Handler

	lock sync.Mutex
	// begun is closed when the events may be sent.
	begun chan struct{}
	// seen is the kind of the last watch request.
	seen string
}

// replay records upstream's pods and eventCount events, and serves them over HTTP and HTTPS, to each client from the start.
//
// It prints "loaded" when it waits for the events, then its two addresses. The order "go" sends the events. The order
// "reset" holds them back again, and prints how pods were last watched.
func replay(upstream, eventCount, certificate, key string) error {
	events, err := strconv.Atoi(eventCount)
	if err != nil {
		return err
	}
	target, err := url.Parse(upstream)
	if err != nil {
		return err
	}
	pods, err := record(upstream, events, func() { fmt.Println("loaded") })
	if err != nil {
		return err
	}
	debug.FreeOSMemory() // the lines are garbage: free their memory for the measured process
	proxy := httputil.NewSingleHostReverseProxy(target)
	proxy.FlushInterval = -1
	s := &server{pods: pods, upstream: proxy, begun: make(chan struct{})}
	plain, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	secured, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	// a stopped client breaks its requests, which is not worth a log line
	silent := log.New(io.Discard, "", 0)
	proxy.ErrorLog = silent
	listening := &http.Server{Handler: s, ErrorLog: silent}
	ended := make(chan error, 3)
	go func() { ended <- listening.Serve(plain) }()
	go func() { ended <- listening.ServeTLS(secured, certificate, key) }()
	go func() { ended <- s.obey() }()
	fmt.Printf("http://%s https://%s\n", plain.Addr(), secured.Addr())
	return <-ended
}

// obey handles orders until stdin is closed.
func (s *server) obey() error {
	orders := bufio.NewScanner(os.Stdin)
	for orders.Scan() {
		s.lock.Lock()
		switch order := orders.Text(); order {
		case "go":
			close(s.begun)
		case "reset":
			fmt.Println(s.seen)
			s.begun, s.seen = make(chan struct{}), ""
		default:
			s.lock.Unlock()
			return fmt.Errorf("unexpected order %q", order)
		}
		s.lock.Unlock()
	}
	return orders.Err()
}

func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	query := r.URL.Query()
	accept := r.Header.Get("Accept")
	isProtobuf := strings.HasPrefix(accept, "application/vnd.kubernetes.protobuf")
	watch, _ := strconv.ParseBool(query.Get("watch"))
	switch {
	case r.URL.Path != podsPath:
		s.upstream.ServeHTTP(w, r)
	case watch && isProtobuf:
		s.watch(w, r, &s.pods.protobuf, mediaProtobufWatch)
	case watch:
		s.watch(w, r, &s.pods.json, mediaJSON)
	case isProtobuf:
		http.Error(w, "a list of pods is served as JSON only", http.StatusNotAcceptable)
	default:
		s.list(w, query)
	}
}

// list answers with a page of the pods; the continue token is the number of pods before it.
func (s *server) list(w http.ResponseWriter, query url.Values) {
	begin, _ := strconv.Atoi(query.Get("continue"))
	limit, _ := strconv.Atoi(query.Get("limit"))
	begin = min(begin, len(s.pods.items))
	end := len(s.pods.items)
	rest := ""
	if limit > 0 && begin+limit < end {
		end = begin + limit
		rest = fmt.Sprintf(`,"continue":"%d","remainingItemCount":%d`, end, len(s.pods.items)-end)
	}
	var body bytes.Buffer
	fmt.Fprintf(&body, `{"kind":"PodList","apiVersion":"v1","metadata":{"resourceVersion":"%d"%s},"items":[`,
		s.pods.version, rest)
	body.Write(bytes.Join(s.pods.items[begin:end], []byte(",")))
	body.WriteString("]}\n")
	w.Header().Set("Content-Type", mediaJSON)
	w.Header().Set("Content-Length", strconv.Itoa(body.Len()))
	w.Write(body.Bytes())
}

// watch sends the initial events, if requested. After the order "go" it sends the events after the requested version. Then
// it is silent until the client disconnects.
func (s *server) watch(w http.ResponseWriter, r *http.Request, frames *frames, media string) {
	query := r.URL.Query()
	w.Header().Set("Content-Type", media)
	initial, _ := strconv.ParseBool(query.Get("sendInitialEvents"))
	skipped := 0
	way := "list and watch"
	if initial {
		way = "streaming list"
	} else if version, _ := strconv.ParseUint(query.Get("resourceVersion"), 10, 64); version > 0 {
		skipped = sort.Search(len(s.pods.versions), func(at int) bool { return s.pods.versions[at] > version })
	}
	s.lock.Lock()
	begun := s.begun
	s.seen = fmt.Sprintf("%s, %s, %s", r.Proto, media, way)
	s.lock.Unlock()
	flush(w)
	if initial && !send(w, frames.initial) {
		return
	}
	select {
	case <-begun:
	case <-r.Context().Done():
		return
	}
	if send(w, frames.from(skipped)) {
		<-r.Context().Done()
	}
}

// send writes data; it returns false if the client has disconnected.
func send(w http.ResponseWriter, data []byte) bool {
	for len(data) > 0 {
		size := min(chunkBytes, len(data))
		if _, err := w.Write(data[:size]); err != nil {
			return false
		}
		data = data[size:]
	}
	return flush(w)
}

func flush(w http.ResponseWriter) bool {
	return http.NewResponseController(w).Flush() == nil
}
