import com.sun.net.httpserver.*;
import java.io.IOException;
import java.net.InetSocketAddress;
import java.nio.charset.StandardCharsets;
import java.util.HashMap;
import java.util.Map;
import java.util.concurrent.Executors;
import org.apache.hadoop.conf.Configuration;
import org.apache.iceberg.catalog.*;
import org.apache.iceberg.exceptions.*;
import org.apache.iceberg.jdbc.JdbcCatalog;
import org.apache.iceberg.rest.CatalogHandlers;
import org.apache.iceberg.rest.RESTCatalogProperties.SnapshotMode;
import org.apache.iceberg.rest.RESTSerializers;
import org.apache.iceberg.rest.RESTUtil;
import org.apache.iceberg.rest.requests.*;
import org.apache.iceberg.rest.responses.ConfigResponse;
import org.apache.iceberg.shaded.com.fasterxml.jackson.annotation.*;
import org.apache.iceberg.shaded.com.fasterxml.jackson.databind.*;

/** Iceberg's own server side of its REST protocol over a JDBC catalog. Arguments: port, then properties as key=value. */
public final class RestCatalog {
  private static final ObjectMapper JSON = new ObjectMapper();
  private static final String SEPARATOR = "%1F";
  private static final Map<Class<? extends RuntimeException>, Integer> STATUSES = Map.of(
      NoSuchTableException.class, 404, NoSuchNamespaceException.class, 404, AlreadyExistsException.class, 409,
      CommitFailedException.class, 409, NamespaceNotEmptyException.class, 409, BadRequestException.class, 400,
      ValidationException.class, 400, IllegalArgumentException.class, 400, SecurityException.class, 401);
  private final JdbcCatalog catalog = new JdbcCatalog();
  private final String token;

  private RestCatalog(Map<String, String> properties) {
    token = properties.remove("token");
    catalog.setConf(new Configuration());
    catalog.initialize("rest", properties);
  }

  public static void main(String[] arguments) throws IOException {
    JSON.setVisibility(PropertyAccessor.FIELD, JsonAutoDetect.Visibility.ANY);
    JSON.configure(DeserializationFeature.FAIL_ON_UNKNOWN_PROPERTIES, false);
    JSON.setPropertyNamingStrategy(new PropertyNamingStrategies.KebabCaseStrategy());
    RESTSerializers.registerAll(JSON);
    Map<String, String> properties = new HashMap<>();
    for (int at = 1; at < arguments.length; at++) {
      String[] parts = arguments[at].split("=", 2);
      properties.put(parts[0], parts[1]);
    }
    RestCatalog served = new RestCatalog(properties);
    HttpServer server = HttpServer.create(new InetSocketAddress("127.0.0.1", Integer.parseInt(arguments[0])), 0);
    server.setExecutor(Executors.newFixedThreadPool(8));
    server.createContext("/v1/", served::answer);
    server.start();
  }

  private void answer(HttpExchange exchange) throws IOException {
    int status = 200;
    Object answer;
    try {
      if (!("Bearer " + token).equals(exchange.getRequestHeaders().getFirst("Authorization"))) {
        throw new SecurityException("no valid token");
      }
      answer = route(exchange);
    } catch (RuntimeException error) {
      status = statusOf(error);
      String message = error.getMessage() == null ? error.toString() : error.getMessage();
      answer = Map.of("error", Map.of("message", message, "type", error.getClass().getSimpleName(), "code", status));
    }
    byte[] body = answer == null ? new byte[0] : JSON.writeValueAsString(answer).getBytes(StandardCharsets.UTF_8);
    exchange.getResponseHeaders().set("Content-Type", "application/json");
    boolean none = body.length == 0 || exchange.getRequestMethod().equals("HEAD");
    exchange.sendResponseHeaders(answer == null ? 204 : status, none ? -1 : body.length);
    if (!none) {
      exchange.getResponseBody().write(body);
    }
    exchange.close();
  }

  private Object route(HttpExchange exchange) throws IOException {
    String[] path = exchange.getRequestURI().getRawPath().substring("/v1/".length()).split("/");
    String query = String.valueOf(exchange.getRequestURI().getRawQuery());
    String method = exchange.getRequestMethod();
    if (path[0].equals("config")) {
      return ConfigResponse.builder().build();
    }
    if (path[0].equals("tables")) { // POST tables/rename
      CatalogHandlers.renameTable(catalog, read(exchange, RenameTableRequest.class));
      return null;
    }
    if (path.length == 1) {
      return method.equals("POST")
          ? CatalogHandlers.createNamespace(catalog, read(exchange, CreateNamespaceRequest.class))
          : CatalogHandlers.listNamespaces(catalog, parent(query));
    }
    Namespace namespace = RESTUtil.decodeNamespaceAsPathSegment(path[1], SEPARATOR);
    if (path.length == 2) {
      switch (method) {
        case "DELETE":
          CatalogHandlers.dropNamespace(catalog, namespace);
          return null;
        case "HEAD":
          CatalogHandlers.namespaceExists(catalog, namespace);
          return null;
        default:
          return CatalogHandlers.loadNamespace(catalog, namespace);
      }
    }
    if (path[2].equals("properties")) {
      return CatalogHandlers.updateNamespaceProperties(
          catalog, namespace, read(exchange, UpdateNamespacePropertiesRequest.class));
    }
    if (path[2].equals("register")) {
      return CatalogHandlers.registerTable(catalog, namespace, read(exchange, RegisterTableRequest.class));
    }
    if (path.length == 3) {
      if (method.equals("GET")) {
        return CatalogHandlers.listTables(catalog, namespace);
      }
      CreateTableRequest request = read(exchange, CreateTableRequest.class);
      return request.stageCreate()
          ? CatalogHandlers.stageTableCreate(catalog, namespace, request)
          : CatalogHandlers.createTable(catalog, namespace, request);
    }
    TableIdentifier table = TableIdentifier.of(namespace, RESTUtil.decodePathSegment(path[3]));
    if (path.length > 4) { // metrics
      exchange.getRequestBody().readAllBytes();
      return null;
    }
    switch (method) {
      case "GET":
        return CatalogHandlers.loadTable(catalog, table, SnapshotMode.ALL);
      case "HEAD":
        CatalogHandlers.tableExists(catalog, table);
        return null;
      case "DELETE":
        if (query.contains("purgeRequested=true")) {
          CatalogHandlers.purgeTable(catalog, table);
        } else {
          CatalogHandlers.dropTable(catalog, table);
        }
        return null;
      default:
        return CatalogHandlers.updateTable(catalog, table, read(exchange, UpdateTableRequest.class));
    }
  }

  private static Namespace parent(String query) {
    for (String part : query.split("&")) {
      if (part.startsWith("parent=")) {
        return RESTUtil.namespaceFromQueryParam(RESTUtil.decodeString(part.substring("parent=".length())));
      }
    }
    return Namespace.empty();
  }

  private static <T> T read(HttpExchange exchange, Class<T> type) throws IOException {
    return JSON.readValue(exchange.getRequestBody(), type);
  }

  private static int statusOf(RuntimeException error) {
    return STATUSES.entrySet().stream()
        .filter(each -> each.getKey().isInstance(error)).mapToInt(Map.Entry::getValue).findFirst().orElse(500);
  }
}
